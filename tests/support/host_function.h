// A case of gradcheck. Its outputs and gradients are C++ functions. A test may replace them between runs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/harness.h"

namespace tg::testing {

using gradcheck::Point;
using gradcheck::Values;

struct HostFunction {
  // `outputs` computes all outputs from all inputs. `gradients` computes the gradients of all floating inputs
  // from inputs and cotangents r. Results are rounded to `dtype`, the dtype under test.
  std::function<Point(const Point& x, DType dtype)> outputs;
  std::function<Point(const Point& x, const Point& r, DType dtype)> gradients;
  std::vector<Point> seen = {};  // the argument x of each call of `outputs`

  // Makes the elementwise function y = f(x), with the derivative of f.
  static std::shared_ptr<HostFunction> of_elements(std::function<double(double)> f,
                                                   std::function<double(double)> slope) {
    auto function = std::make_shared<HostFunction>();
    function->outputs = [f](const Point& x, DType) {
      Point y(1);
      for (const double e : x[0]) y[0].push_back(f(e));
      return y;
    };
    function->gradients = [slope](const Point& x, const Point& r, DType) {
      Point z(1);
      for (std::size_t k = 0; k < x[0].size(); ++k) z[0].push_back(slope(x[0][k]) * r[0][k]);
      return z;
    };
    return function;
  }
};

inline Point read_all(std::span<const HostView> views) {
  Point all;
  for (const HostView& v : views) {
    all.emplace_back();
    for (std::int64_t i = 0; i < v.numel(); ++i) all.back().push_back(v.at(i));
  }
  return all;
}

inline void write_all(std::span<const HostView> views, const Point& all) {
  ASSERT_EQ(views.size(), all.size());
  for (std::size_t o = 0; o < views.size(); ++o)
    for (std::int64_t i = 0; i < views[o].numel(); ++i)
      views[o].set(i, all[o].at(static_cast<std::size_t>(i)));
}

// Makes a case that calls the function as one op. The outputs have these shapes and the dtype of input 0.
inline gradcheck::Case case_of(const std::shared_ptr<HostFunction>& function, std::vector<SampleInput> inputs,
                               std::vector<Shape> shapes) {
  static int cases = 0;
  const CustomOp op = register_host_op(
      {.name = "host_function_" + std::to_string(cases++),
       .infer =
           [shapes](std::span<const Operand> in) {
             std::vector<OutSpec> specs;
             for (const Shape& s : shapes) specs.push_back({in[0].dtype, row_major(s)});
             return specs;
           },
       .forward =
           [function](auto in, auto out) {
             const Point x = read_all(in);
             function->seen.push_back(x);
             write_all(out, function->outputs(x, out[0].dtype));
           },
       .backward =
           [function](const HostGradient& g) {
             write_all(g.z_in, function->gradients(read_all(g.in), read_all(g.z), g.out[0].dtype));
           }});
  return {"function", "case", std::move(inputs), [op](DType, Device) {
            return gradcheck::Callable{
                {}, [op](std::span<const Tensor> x) { return op.all(x, std::source_location::current()); }};
          }};
}

// Returns the value rounded to the dtype.
inline double rounded_to(DType dtype, double x) {
  Array a({1}, dtype);
  a.set(0, x);
  return a.at(0);
}

}  // namespace tg::testing
