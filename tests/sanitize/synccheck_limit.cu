// What synccheck (Compute Sanitizer 2025.3) cannot run, though nothing is wrong with it: see `LOST` in tools.py.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a synccheck_limit.cu -o limit
//   ./limit 16 8; compute-sanitizer --tool memcheck ./limit 16 8     # right, no errors
//   compute-sanitizer --tool synccheck ./limit 16 3                  # right, no errors; as ./limit 8 40
//   compute-sanitizer --tool synccheck ./limit 16 8                  # an illegal memory access, no report
#include <cstdint>
#include <cstdio>
#include <cstdlib>

__device__ void meet() { asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__global__ void exchange(float* y, unsigned size) {
  __shared__ float box[16];
  __shared__ uint64_t arrived;
  uint32_t bar = __cvta_generic_to_shared(&arrived), words = __cvta_generic_to_shared(box), there, word;
  uint32_t rank, other = threadIdx.x;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
  asm volatile("fence.mbarrier_init.release.cluster;");
  meet();
  if (other < size) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(other));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(word) : "r"(words + 4 * rank), "r"(other));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(word), "r"(0x3f800000), "r"(there) : "memory");
  }
  if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(4 * size) : "memory");
  asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra W;\n}" ::"r"(bar) : "memory");
  float sum = 0;
  for (unsigned i = 0; i < size; i++) sum += box[i];
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  meet();
}

int main(int, char** arguments) {
  int size = atoi(arguments[1]), clusters = atoi(arguments[2]);
  float *y, first = 0;
  cudaMalloc(&y, size * clusters * 128 * sizeof(float));
  cudaFuncSetAttribute(exchange, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute shape[1] = {};
  shape[0].id = cudaLaunchAttributeClusterDimension;
  shape[0].val.clusterDim.x = size, shape[0].val.clusterDim.y = shape[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(size * clusters), launch.blockDim = dim3(128), launch.attrs = shape, launch.numAttrs = 1;
  cudaError_t error = cudaLaunchKernelEx(&launch, exchange, y, (unsigned)size);
  if (!error) error = cudaDeviceSynchronize();
  cudaMemcpy(&first, y, sizeof first, cudaMemcpyDeviceToHost);
  printf("%d clusters of %d blocks: %s, sum %g\n", clusters, size, cudaGetErrorString(error), first);
  return error != cudaSuccess;
}
