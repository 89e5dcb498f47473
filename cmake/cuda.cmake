# The CUDA backend: built where nvcc is found, left out with a line that says so where it is not.
# TILEGRAD_CUDA: AUTO, ON (nvcc must be there) or OFF. Code for sm_80 and sm_90a, and PTX of compute_80 for
# what comes after: nvcc makes it on the way to sm_80's code.
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
    message(FATAL_ERROR "TILEGRAD_CUDA is ON, but there is no nvcc on the PATH")
  endif()
  message(STATUS "CUDA backend: off (no nvcc found; the CUDA Toolkit 13 has it)")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
set(TILEGRAD_HAS_CUDA ON)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA backend: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES})")
set(CMAKE_CUDA_FLAGS_RELEASE "-O1")  # of host code, which launches; kernels are always compiled with all there is
set(CMAKE_CUDA_FLAGS_DEBUG "-O1 -g")

file(GLOB_RECURSE TILEGRAD_CUDA_SOURCES CONFIGURE_DEPENDS backends/cuda/*.cpp)
file(GLOB_RECURSE TILEGRAD_CUDA_KERNELS CONFIGURE_DEPENDS backends/cuda/*.cu)
set(attention ${TILEGRAD_CUDA_KERNELS})
list(FILTER attention INCLUDE REGEX "/cuda/attention/")
option(TILEGRAD_CUDA_QUICK "Compile kernels with few optimisations, to see that they compile, in a third of the time" OFF)
# A register that ptxas spills in a kernel of attention, or of a head's, ends the build.
if(NOT TILEGRAD_CUDA_QUICK)
  set_source_files_properties(${attention} backends/cuda/gemm/head_loss.cu backends/cuda/gemm/ordered_product.cu PROPERTIES COMPILE_OPTIONS "-Xptxas=-warn-spills,-warn-lmem-usage,-Werror")
endif()
# Random numbers are the CPU's bit for bit: no multiply-add in place of a product and a sum.
set_source_files_properties(backends/cuda/kernels/random.cu backends/cuda/kernels/sample.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
include(cmake/cuda_unity.cmake)
# nvcc can compile for its targets at the same time. Where processors are few that takes longer, a file each is enough for
# them; where they are many, all wait for the longest file.
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
set(at_once 0)  # as many as there are processors
if(processors LESS 8)
  set(at_once 1)
endif()
add_library(tilegrad_cuda OBJECT ${TILEGRAD_CUDA_SOURCES} ${TILEGRAD_CUDA_UNITS})
target_compile_options(tilegrad_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --expt-extended-lambda
                       -Xcompiler=-fPIC --threads=${at_once} $<$<BOOL:${TILEGRAD_CUDA_QUICK}>:-Ofc=max>>)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  set_source_files_properties(backends/cuda/backend.cpp PROPERTIES COMPILE_DEFINITIONS TILEGRAD_SM90A)
endif()
set_source_files_properties(${TILEGRAD_CUDA_UNITS} backends/cuda/gemm/matmul.cpp backends/cuda/gemm/matmul_in_units.cpp backends/cuda/gemm/transposed_product.cpp backends/cuda/jit/reduced_chain.cpp backends/cuda/runtime/kernel.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(tilegrad_cuda PROPERTIES CUDA_SEPARABLE_COMPILATION OFF ${unity}
                      RULE_LAUNCH_COMPILE "${PROJECT_SOURCE_DIR}/cmake/check_wgmma.sh")
# The driver is looked for when a GPU is asked for: a program built with CUDA runs on a machine without one.
target_link_libraries(tilegrad_cuda PUBLIC tilegrad_source_tree CUDA::cudart_static CUDA::cublasLt CUDA::nvrtc)
target_sources(tilegrad PRIVATE $<TARGET_OBJECTS:tilegrad_cuda>)
target_link_libraries(tilegrad PUBLIC CUDA::cudart_static CUDA::cublasLt CUDA::nvrtc)
target_compile_definitions(tilegrad PRIVATE TILEGRAD_CUDA)
