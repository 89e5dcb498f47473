#include "backends/cuda/runtime/graph.h"

#include <vector>

#include "backends/cuda/kernels/runtime.h"

namespace tg::cuda {

namespace {

cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t memset) {
  cudaMemsetParams set{};
  std::size_t before = 0, after = 0;
  cudaError_t status = cudaGraphMemsetNodeGetParams(memset, &set);
  if (status == cudaSuccess) status = cudaGraphNodeGetDependencies(memset, nullptr, nullptr, &before);
  if (status == cudaSuccess) status = cudaGraphNodeGetDependentNodes(memset, nullptr, nullptr, &after);
  if (status != cudaSuccess) return status;
  std::vector<cudaGraphNode_t> from(before), to(after);
  if (before > 0) status = cudaGraphNodeGetDependencies(memset, from.data(), nullptr, &before);
  if (status == cudaSuccess && after > 0)
    status = cudaGraphNodeGetDependentNodes(memset, to.data(), nullptr, &after);
  if (status != cudaSuccess) return status;

  SetMemory what{static_cast<unsigned char*>(set.dst), set.value,  set.elementSize,
                 set.width * set.elementSize,          set.height, set.pitch};
  void* arguments[] = {&what};
  cudaKernelNodeParams params{};
  params.func = set_memory_kernel();
  params.gridDim = dim3(what.blocks()), params.blockDim = dim3(SetMemory::threads);
  params.kernelParams = arguments;
  cudaGraphNode_t kernel = nullptr;
  status = cudaGraphAddKernelNode(&kernel, graph, from.data(), before, &params);
  for (std::size_t i = 0; status == cudaSuccess && i < after; ++i)
    status = cudaGraphAddDependencies(graph, &kernel, &to[i], nullptr, 1);
  return status == cudaSuccess ? cudaGraphDestroyNode(memset) : status;
}

}  // namespace

cudaError_t memsets_to_kernels(cudaGraph_t graph) {
  std::size_t count = 0;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (status == cudaSuccess && count > 0) status = cudaGraphGetNodes(graph, nodes.data(), &count);
  for (std::size_t i = 0; status == cudaSuccess && i < count; ++i) {
    cudaGraphNodeType type;
    status = cudaGraphNodeGetType(nodes[i], &type);
    if (status == cudaSuccess && type == cudaGraphNodeTypeMemset) status = replace(graph, nodes[i]);
  }
  return status;
}

}  // namespace tg::cuda
