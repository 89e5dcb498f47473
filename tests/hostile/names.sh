#!/bin/sh
# Checks that tests/hostile/*_calls.cpp calls every function and method of the public headers, except the exempt names
# below.
#   names.sh ROOT
set -eu
cd "$1"

# These functions are exempt: functions for raw memory, internal functions of public templates, counters and
# constants that accept any number, and functions that need minutes.
functions="load_element store_element odd_float bernoulli_bound log_of_unit normal_pair attention_counter dropout_bound element_counter node_key
philox compute_type is_int name_of size_of at_line in_context record record_all backend unused bytes_of cost_of
roundings_of flops_of_a_byte price_of kind_of work_of log_level settings_of check_size check_divisible check_rotary mlp_width_setting
swiglu_width
theta_setting norm_blocks derivative mutate op_cases register_case registered_cases v_curve
measure_ceilings all_ops attention_of attention_backward_of paged_attention_of find_op define_op safe_cut word_end progress_line short_count short_time safetensors_content
write_checkpoint"
# These methods are exempt: methods of ops, kernels, backends and architectures, and unchecked access to the
# elements of a short list, and accessors of attributes.
methods="operator fields as non_default_text back erase bfloat16 float16 load_element size_of may_share is_exact
add_custom_gradient new_segment record allocate available_bytes bind choice done prepare status_bytes transfer
workspace_bytes level ran compiled allowed cpu cuda captured depends defined is_absent is_number fail"

calls=$(mktemp)
trap 'rm -f "$calls"' EXIT
grep -hv '^#include' tests/hostile/*_calls.cpp >"$calls"

# names EXEMPT: reads names and prints those that are neither called nor exempt
missing_of() {
  sort -u | while read -r name; do
    case " $(echo $1) " in *" $name "*) continue ;; esac
    grep -w "$name" "$calls" >/dev/null || echo "$header: $name is not called in tests/hostile"
  done
}

missing=$(sed -n '/^set(TILEGRAD_PUBLIC_HEADERS/,/)/p' cmake/public_headers.cmake | grep -o '[a-z_/]*\.h' | while read -r header; do
  # Function declarations begin in the first column, methods in the third. Namespace detail is ignored.
  declared=$(awk '/^namespace detail/ { skip = 1 } !skip { print } /^}  \/\/ namespace detail/ { skip = 0 }' "$header")
  echo "$declared" | grep -oE '^[A-Za-z_\[][^(=/]* [*&]?[a-z_0-9]+\(' | sed -E 's/.*[ *&]([a-z_0-9]+)\($/\1/' | missing_of "$functions"
  echo "$declared" | awk '
    /^(class|struct) / { hidden = 0 }
    /^ (private|protected):/ { hidden = 1 }
    /^ public:/ { hidden = 0 }
    !hidden && /^  [A-Za-z_\[]/ && !/^  (friend|using|template|throw|if|return|for) ?/ { print }' |
    grep -oE '^  [^(=/]*[ *&][a-z_0-9]+\(' | sed -E 's/.*[ *&]([a-z_0-9]+)\($/\1/' | missing_of "$methods"
done)
[ -z "$missing" ] || { echo "$missing"; exit 1; }
