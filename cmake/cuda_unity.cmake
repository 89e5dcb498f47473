# Groups of kernel files that are compiled together, because compiling the included headers takes longer than
# most kernels. (CMake's UNITY_BUILD supports CUDA only since 3.31.) The files of a line must have the same
# options and must not share names in unnamed namespaces. The slowest groups are first, so that the build does
# not end with one of them. Files that are in no group are last, and are compiled one by one.
set(together
  "attention/plain attention/backward/bias_gradient attention/flash_attn attention/backward/row_stats attention/split_to_f16"
  "attention/backward/backward_two_passes_sm80"
  "attention/backward/backward_one_pass_sm80"
  "attention/forward/forward_sm80"
  "kernels/reduce_sum kernels/reduce_extreme kernels/reduce_plan kernels/logsumexp"
  "kernels/norm kernels/norm_backward"
  "attention/forward/forward_sm90"
  "attention/decoding/decoding_sm80"
  "attention/decoding/decoding_split_kv_sm80"
  "attention/decoding/decoding_f32"
  "attention/backward/backward_sm90"
  "attention/decoding/decoding_latent_sm90 attention/forward/merge_sm90"
  "gemm/rows_gemm gemm/rows_gemm_many"
  "gemm/rows_gemm_norm"
  "attention/decoding/decoding_latent_sm80"
  "kernels/index_add kernels/index_sums kernels/index_select kernels/index_assign kernels/copy kernels/rope gemm/matmul_strided
   kernels/runtime"
  "kernels/softmax kernels/cross_entropy kernels/cumsum kernels/top_k kernels/adamw kernels/squared_norm fusion/cast_list"
  "kernels/random kernels/sample")

set(TILEGRAD_CUDA_UNITS ${TILEGRAD_CUDA_KERNELS})
if(NOT TILEGRAD_UNITY)
  return()
endif()
set(units "")
set(folder backends/cuda)
foreach(names ${together})
  string(REGEX REPLACE "[ \n]+" ";" names ${names})
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
  list(LENGTH names files)
  if(files GREATER 1)
    get_filename_component(first ${first} NAME)
    set(unit ${PROJECT_BINARY_DIR}/kernels/${first}_and_more.cu)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}")
    if(options)
      set_source_files_properties(${unit} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
  endif()
  list(APPEND units ${unit})
endforeach()
list(PREPEND TILEGRAD_CUDA_UNITS ${units})
