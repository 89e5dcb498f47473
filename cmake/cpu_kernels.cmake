# Compiles the CPU kernels in backends/cpu/kernels once per instruction set, with TG_ISA as the namespace. The
# instruction set is chosen at run time (backends/cpu/isa.cpp).
file(GLOB TILEGRAD_KERNELS CONFIGURE_DEPENDS backends/cpu/kernels/*.cpp backends/cpu/kernels/attention/*.cpp)

# Random numbers must be the same for every instruction set, so a product and a sum are not contracted to a
# multiply-add.
set_source_files_properties(core/base/random.cpp backends/cpu/kernels/random.cpp backends/cpu/kernels/sample.cpp
                            nn/generation/sampling.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)

function(tilegrad_kernels isa)  # further arguments: compiler flags
  add_library(tilegrad_kernels_${isa} OBJECT ${TILEGRAD_KERNELS})
  target_link_libraries(tilegrad_kernels_${isa} PRIVATE tilegrad_source_tree)
  target_compile_definitions(tilegrad_kernels_${isa} PRIVATE TG_ISA=${isa})
  target_compile_options(tilegrad_kernels_${isa} PRIVATE -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast ${ARGN})
  if(TILEGRAD_SANITIZE MATCHES "undefined")  # -O3 also unrolls the checks and triples the compile time
    target_compile_options(tilegrad_kernels_${isa} PRIVATE -O1)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # GCC reports false positives in its AVX-512 intrinsics
    target_compile_options(tilegrad_kernels_${isa} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  target_precompile_headers(tilegrad_kernels_${isa} PRIVATE
                            backends/cpu/kernels/kernels.h backends/cpu/kernels/simd_math.h)
  target_sources(tilegrad PRIVATE $<TARGET_OBJECTS:tilegrad_kernels_${isa}>)
  target_compile_definitions(tilegrad PRIVATE TILEGRAD_ISA_${isa})
endfunction()

set(flags_baseline -O2)  # -O3 doubles the compile time and gains little without AVX
set(flags_avx2 -march=haswell -mtune=generic)
set(flags_avx512 -march=skylake-avx512 -mprefer-vector-width=512 -mtune=icelake-server)
set(isas baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND isas avx2 avx512)
endif()
set(TILEGRAD_CPU_ISAS "${isas}" CACHE STRING "Instruction sets of the CPU kernels; the tests require baseline")
foreach(isa ${TILEGRAD_CPU_ISAS})
  if(NOT isa IN_LIST isas)
    message(FATAL_ERROR "TILEGRAD_CPU_ISAS: unknown instruction set '${isa}', expected some of ${isas}")
  endif()
  tilegrad_kernels(${isa} ${flags_${isa}})
endforeach()
