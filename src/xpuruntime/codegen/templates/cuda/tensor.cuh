// tensor.cuh: wrappers for the instructions of tiled kernels: mma, ldmatrix, cp.async, 16-byte loads.
// Only this file and hopper.cuh contain such instructions, so that tests can replace both with plain C++ and run kernels on a CPU.
namespace tensor {

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Tags of the 16-bit storage types: conversion to float and back (rounded once, to nearest even).
struct Bf16 {
    static __device__ __forceinline__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
    static __device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
    static __device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
    static __device__ __forceinline__ u32 pack(float low, float high) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};
struct F16 {
    static __device__ __forceinline__ float wide(u16 x) {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    }
    static __device__ __forceinline__ float low(u32 pair) { return wide((u16)pair); }
    static __device__ __forceinline__ float high(u32 pair) { return wide((u16)(pair >> 16)); }
    static __device__ __forceinline__ u32 pack(float low, float high) {
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};

// x & mask | bits, in one instruction also where both are constants.
__device__ __forceinline__ u32 and_or(u32 x, u32 mask, u32 bits) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}

// The products of two pairs of bfloat16 numbers, rounded once. Subnormal numbers are kept.
__device__ __forceinline__ u32 mul_bf16x2(u32 x, u32 y) {
    u32 products;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(products) : "r"(x), "r"(y), "r"(0x80008000u));
    return products;
}

// The 32-bit shared-space address that the instructions below take.
__device__ __forceinline__ u32 smem_addr(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

// Copy 16 bytes from global to shared memory asynchronously; write zeros and read nothing if `there` is false.
__device__ __forceinline__ void cp_async_16(u32 to, const void *from, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same for 4 bytes.
__device__ __forceinline__ void cp_async_4(u32 to, const void *from, bool there) {
    const int bytes = there ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most the `pending` most recent groups of this thread's copies are outstanding.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Load four 8x8 matrices of 16-bit values; lane i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

// Transpose an 8x8 matrix of 16-bit values held by a warp, two values per lane.
__device__ __forceinline__ u32 movmatrix_trans(u32 pair) {
    u32 r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

// d[16x8] += a[16x16] b[16x8], sums in float.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<Bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<F16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#define MASKED_SCORE __int_as_float((int)0xff800000)  // minus infinity: the logit of a masked key

// 2**x within 2 ulp; -inf gives 0.
__device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A 16-byte load that bypasses L1, for data that is read once.
struct Quad {
    u32 x[4];
};
__device__ __forceinline__ Quad ld_streaming_16(const void *from) {
    Quad q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.x[0]), "=r"(q.x[1]), "=r"(q.x[2]), "=r"(q.x[3])
                 : "l"(from));
    return q;
}
__device__ __forceinline__ Quad load16(const void *from) {
    const uint4 v = *(const uint4 *)from;
    return Quad{{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ void store16(void *to, const Quad &q) { *(uint4 *)to = make_uint4(q.x[0], q.x[1], q.x[2], q.x[3]); }

}  // namespace tensor
