// permute: 301056 elements of bfloat16
// launch: grid 96 1 1, block 256 1 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const uint16_t *in0, uint16_t *out0) {
    griddep_sync();
  const uint32_t b0 = blockIdx.x / 48;
  const uint32_t b1 = blockIdx.x / 4 % 12;
  const uint32_t b2 = blockIdx.x % 4;
  if (fits<2>(out0) && fits<2>(in0)) transposed<64, 2, 2, 256>(out0 + b0 * 150528, 196, in0 + b0 * 150528, 768, b1 * 64, 768, b2 * 64, 196);
  else transposed<64, 2, 1, 256>(out0 + b0 * 150528, 196, in0 + b0 * 150528, 768, b1 * 64, 768, b2 * 64, 196);
}
