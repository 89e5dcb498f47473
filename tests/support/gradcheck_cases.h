// Cases for tests of gradcheck: functions with a gradient that the test defines, and samples of ops by name.
#pragma once

#include <gtest/gtest.h>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/tilegrad.h>

namespace tg::gradcheck {

using Tensors = std::vector<Tensor>;
using Backward = std::function<Tensors(const Tensors& in, const Tensors& out, const Tensors& z)>;

// Makes a case from graph code with a custom backward.
inline Case custom_case(std::vector<SampleInput> inputs, std::function<Tensors(const Tensors&)> forward,
                        Backward backward) {
  const CustomOp op = custom_op("custom", {std::move(forward), std::move(backward)});
  return {"custom", "case", std::move(inputs), [op](DType, Device) {
            return Callable{
                {}, [op](std::span<const Tensor> x) { return op.all(x, std::source_location::current()); }};
          }};
}

// Makes a case without a gradient. Its input is an integer, or its output is a comparison.
inline Case case_without_gradient(bool is_float_output) {
  const SampleInput in = is_float_output ? SampleInput{{2}, {Fill::index, 0, 5}} : SampleInput{{2}};
  return {"nothing", "case", {in}, [=](DType, Device) {
            return Callable{{}, [=](std::span<const Tensor> x) {
                              return Tensors{is_float_output ? cast(x[0], f64) : greater(x[0], 0)};
                            }};
          }};
}

inline const std::vector<SampleInput> matrix{{{2, 3}}};

// Makes a case of x³ with the given backward.
inline Case cube(Backward backward) {
  return custom_case(
      matrix, [](const Tensors& in) { return Tensors{in[0] * in[0] * in[0]}; }, std::move(backward));
}
inline Tensor right(const Tensors& in, const Tensors& z) {
  return z[0] * 3 * in[0] * in[0];
}

inline Options f64_contiguous(bool fast) {
  Options o;
  o.dtypes = {f64};
  o.views = {View::contiguous};
  o.fast = fast;
  return o;
}

// Returns the only result of a case in f64 with the contiguous view.
inline Result one(const Case& c, bool fast = false) {
  const auto results = check(c, f64_contiguous(fast));
  EXPECT_EQ(results.size(), 1u);
  return results.at(0);
}

// Returns the sample of an op with this name, such as "mul/same".
inline Case named(const std::string& text) {
  for (const Case& c : op_cases())
    if (c.text() == text) return c;
  throw std::runtime_error("no sample " + text);
}

}  // namespace tg::gradcheck
