#!/bin/sh
# Every function that a public header declares is called by tests/hostile/*_calls.cpp, or is named here.
#   names.sh ROOT
set -eu
cd "$1"

# Raw memory, internal parts that public templates need, counters and constants that take any number, and
# functions that check or measure for minutes.
exempt="load_element store_element log_of_unit normal_pair attention_counter dropout_bound element_counter node_key
philox compute_type is_int name_of size_of at_line in_context record record_all backend unused bytes_of cost_of
kind_of work_of log_level settings_of check_size check_rotary_stack mlp_width_setting rotary_stack swiglu_width
theta_setting adamw_state append_adamw derivative mutate op_cases register_case registered_cases v_curve
measure_ceilings all_ops find_op safe_cut word_end progress_line short_count short_time safetensors_content
write_checkpoint"

missing=$(sed -n '/^set(TILEGRAD_PUBLIC_HEADERS/,/)/p' cmake/public_headers.cmake | grep -o '[a-z_/]*\.h' | while read -r header; do
  # Declarations begin in the first column; those of namespace detail do not count.
  awk '/^namespace detail/ { skip = 1 } !skip { print } /^}  \/\/ namespace detail/ { skip = 0 }' "$header" |
    grep -oE '^[A-Za-z_\[][^(=/]* [*&]?[a-z_0-9]+\(' | sed -E 's/.*[ *&]([a-z_0-9]+)\($/\1/' | sort -u |
    while read -r name; do
      case " $(echo $exempt) " in *" $name "*) continue ;; esac
      cat tests/hostile/*_calls.cpp | grep -w "$name" >/dev/null ||
        echo "$header: no call of $name in tests/hostile"
    done
done)
[ -z "$missing" ] || { echo "$missing"; exit 1; }
