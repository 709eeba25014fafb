// permute: 301056 elements of bfloat16
// launch: grid 336 1 1, block 256 1 1, shared 0
extern "C" __global__ void __launch_bounds__(256) KERNEL(const uint16_t *in0, uint16_t *out0) {
    in_turn();
  const uint32_t b0 = blockIdx.x / 168;
  const uint32_t b1 = blockIdx.x / 7 % 24;
  const uint32_t b2 = blockIdx.x % 7;
  transposed<32, 256>(out0 + b0 * 150528, 196, in0 + b0 * 150528, 768, b1 * 32, 768, b2 * 32, 196);
}
