# The CUDA backend. TILEGRAD_CUDA is AUTO (build the backend if nvcc is found, otherwise print a status line),
# ON (require nvcc) or OFF. By default, kernels are compiled for sm_80 and sm_90a, with PTX for compute_80 as
# a fallback for later GPUs. That PTX needs no extra time, because nvcc generates it for sm_80 anyway.
set(TILEGRAD_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE TILEGRAD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TILEGRAD_HAS_CUDA OFF)
if(TILEGRAD_CUDA STREQUAL "OFF")
  message(STATUS "CUDA backend: off (TILEGRAD_CUDA=OFF)")
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(TILEGRAD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TILEGRAD_CUDA is ON, but nvcc is not on the PATH")
  endif()
  message(STATUS "CUDA backend: off (nvcc of the CUDA Toolkit 13 was not found)")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
set(TILEGRAD_HAS_CUDA ON)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know this option of nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA backend: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES})")
set(CMAKE_CUDA_FLAGS_RELEASE "-O1")  # for host code, which only launches; kernels are always fully optimized
set(CMAKE_CUDA_FLAGS_DEBUG "-O1 -g")

file(GLOB_RECURSE TILEGRAD_CUDA_SOURCES CONFIGURE_DEPENDS backends/cuda/*.cpp)
file(GLOB_RECURSE TILEGRAD_CUDA_KERNELS CONFIGURE_DEPENDS backends/cuda/*.cu)
set(attention ${TILEGRAD_CUDA_KERNELS})
list(FILTER attention INCLUDE REGEX "/cuda/attention/")
option(TILEGRAD_CUDA_QUICK "Compile kernels with few optimizations, to check in a third of the time that they compile" OFF)
# Register spills are errors in attention kernels and in kernels of the head.
if(NOT TILEGRAD_CUDA_QUICK)
  set_source_files_properties(${attention} backends/cuda/gemm/head_loss.cu backends/cuda/gemm/ordered_gemm.cu PROPERTIES COMPILE_OPTIONS "-Xptxas=-warn-spills,-warn-lmem-usage,-Werror")
endif()
# Random numbers must be bitwise identical to the CPU's, so a product and a sum are not contracted to a
# multiply-add.
set_source_files_properties(backends/cuda/kernels/random.cu backends/cuda/kernels/sample.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
include(cmake/cuda_unity.cmake)
# nvcc can compile for its targets in parallel. With few processors that is slower, because each processor
# already compiles a file. With many processors it is faster, because the longest file determines the total
# time.
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
set(at_once 0)  # one thread per processor
if(processors LESS 8)
  set(at_once 1)
endif()
add_library(tilegrad_cuda OBJECT ${TILEGRAD_CUDA_SOURCES} ${TILEGRAD_CUDA_UNITS})
target_compile_options(tilegrad_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --expt-extended-lambda
                       -Xcompiler=-fPIC --threads=${at_once} $<$<BOOL:${TILEGRAD_CUDA_QUICK}>:-Ofc=max>>)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  set_source_files_properties(backends/cuda/backend.cpp PROPERTIES COMPILE_DEFINITIONS TILEGRAD_SM90A)
endif()
set_source_files_properties(${TILEGRAD_CUDA_UNITS} backends/cuda/gemm/matmul.cpp backends/cuda/gemm/matmul_in_units.cpp backends/cuda/gemm/transposed_gemm.cpp backends/cuda/jit/fused_reduction.cpp backends/cuda/runtime/kernel.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(tilegrad_cuda PROPERTIES CUDA_SEPARABLE_COMPILATION OFF ${unity}
                      RULE_LAUNCH_COMPILE "${PROJECT_SOURCE_DIR}/cmake/check_wgmma.sh")
# The driver is loaded at run time, when a GPU is requested, so a program built with CUDA also runs on a
# machine without one.
target_link_libraries(tilegrad_cuda PUBLIC tilegrad_source_tree CUDA::cudart_static CUDA::cublasLt CUDA::nvrtc)
target_sources(tilegrad PRIVATE $<TARGET_OBJECTS:tilegrad_cuda>)
target_link_libraries(tilegrad PUBLIC CUDA::cudart_static CUDA::cublasLt CUDA::nvrtc)
target_compile_definitions(tilegrad PRIVATE TILEGRAD_CUDA)
