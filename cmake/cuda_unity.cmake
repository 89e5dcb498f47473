# Which files of kernels are compiled together: what one of them includes costs nvcc more than most kernels do. (CMake's own
# UNITY_BUILD knows CUDA from 3.31 on.) The files of a line have the same options, and no names in an unnamed namespace
# in common. What takes longest comes first, so that no processor is left alone with it at the end; files that no line
# names come last, one by one.
set(together
  "attention_f32_backward attention_tf32_backward attention_f32_forward attention_tf32_forward"
  "attention_one_pass attention_wide_backward"
  "reduce_sum reduce_extreme reduce_plan logsumexp"
  "norm norm_backward"
  "attention_mma_backward"
  "attention_mma_forward"
  "index_add index_sums index_select copy arange rope matmul_strided set_memory note_thrown"
  "softmax cross_entropy cumsum top_k rows adamw squared_norm"
  "attention_plain attention_bias attention attention_halves"
  "attention_wide_forward"
  "random")

set(TILEGRAD_CUDA_UNITS ${TILEGRAD_CUDA_KERNELS})
if(NOT TILEGRAD_UNITY)
  return()
endif()
set(units "")
set(folder backends/cuda/kernels)
foreach(names ${together})
  string(REPLACE " " ";" names ${names})
  list(GET names 0 first)
  set(unit ${PROJECT_SOURCE_DIR}/${folder}/${first}.cu)
  get_source_file_property(options ${unit} COMPILE_OPTIONS)
  set(includes "")
  foreach(name ${names})
    list(REMOVE_ITEM TILEGRAD_CUDA_UNITS ${PROJECT_SOURCE_DIR}/${folder}/${name}.cu)
    get_source_file_property(own ${PROJECT_SOURCE_DIR}/${folder}/${name}.cu COMPILE_OPTIONS)
    if(NOT own STREQUAL options)
      message(FATAL_ERROR "${name}.cu and ${first}.cu have different options and cannot be compiled together")
    endif()
    string(APPEND includes "#include \"${folder}/${name}.cu\"\n")
  endforeach()
  if(NOT names STREQUAL first)
    set(unit ${PROJECT_BINARY_DIR}/kernels/${first}_and_more.cu)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}")
    if(options)
      set_source_files_properties(${unit} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
  endif()
  list(APPEND units ${unit})
endforeach()
list(PREPEND TILEGRAD_CUDA_UNITS ${units})
