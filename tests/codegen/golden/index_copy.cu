// stays: 65536 elements of bfloat16
// launch: grid 128 1 1, block 256 1 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const uint16_t *in0, const uint16_t *in1, const uint16_t *in2, uint16_t *out0) {
    griddep_sync();
  // copy of the operand
  const uint32_t t = blockIdx.x * 256 + threadIdx.x;
  const uint32_t i0 = t * 2;
  copy_pack<2>(out0 + i0, in0 + i0);
}

// index_copy: 512 elements of bfloat16
// launch: grid 2 1 1, block 256 1 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const uint16_t *in0, const int64_t *in1, const uint16_t *in2, uint16_t *out0) {
    griddep_sync();
  const uint32_t t = blockIdx.x * 256 + threadIdx.x;
  const bool rises = rising(in1, 4, 1);
  const uint32_t i0 = t / 128;
  const uint32_t i1 = t / 64 % 2;
  const uint32_t i2 = t % 64;
  if (rises) {
    const int64_t at0 = index_in(in1[i0], 512);
    *(out0 + i1 * 32768 + i2 + at0 * 64) = *(in2 + i0 * 64 + i1 * 256 + i2);
  } else if (i0 == 0) {
    for (uint32_t j = 0; j < 4; ++j) {
      const int64_t at0 = index_in(in1[j], 512);
      *(out0 + i1 * 32768 + i2 + at0 * 64) = *(in2 + j * 64 + i1 * 256 + i2);
    }
  }
}
