// The graphs that pointwise ops, views, ops by index and reductions record, compared with calls_golden.txt.
// Each call with its defaults, with each option, and at both sides of each limit.
#include "tests/support/golden_calls.h"

namespace {

using namespace tg;
using namespace tg::testing;

#define CALL TG_CALL

const Call pointwise[] = {
    CALL(in.x() + in.y({4})) CALL(in.x() - 2) CALL(3 - in.x()) CALL(in.h() * in.y()) CALL(in.d() / in.h())
        CALL(in.u() / in.u()) CALL(in.x() + in.y({5})) CALL(in.i() + in.j()) CALL(in.u() + in.b()) CALL(
            in.b() + in.b()) CALL(in.i({3, 1}) * in.x()) CALL(in.u() + 256) CALL(in.u() + 255)
            CALL(in.u() + 0.5) CALL(in.i() + 0.5) CALL(in.h() + 1e39) CALL(in.j() + 1e10) CALL(
                pow(in.x(), in.y())) CALL(pow(in.x(), 2)) CALL(pow(2, in.x())) CALL(pow(in.i(), 2))
                CALL(maximum(in.x(), in.y())) CALL(minimum(in.x(), 0)) CALL(maximum(in.u(), 3)) CALL(
                    neg(in.x())) CALL(neg(in.b())) CALL(abs(in.x())) CALL(abs(in.i())) CALL(sign(in.x()))
                    CALL(sqrt(in.x())) CALL(sqrt(in.i())) CALL(rsqrt(in.x())) CALL(exp(in.x())) CALL(
                        log(in.x())) CALL(sin(in.x())) CALL(cos(in.x())) CALL(tanh(in.x())) CALL(erf(in.x()))
                        CALL(sigmoid(in.x())) CALL(relu(in.x())) CALL(silu(in.x())) CALL(gelu(in.x())) CALL(
                            gelu_tanh(in.x())) CALL(silu_slope(in.x()))
                            CALL(gelu_slope(in.x())) CALL(gelu_tanh_slope(in.x())) CALL(
                                gelu_tanh_slope(in.u())) CALL(clamp(in.x(), -1, 2)) CALL(clamp(in.x(), 1, 1))
                                CALL(clamp(in.x(), 2, 1)) CALL(clamp(in.x(), nan, 1))
                                    CALL(clamp(in.x(), 0, 1e39)) CALL(clamp(in.h(), 0, 3e38)) CALL(
                                        clamp(in.u(), 0, 255)) CALL(clamp(in.u(), 0, 256))
                                        CALL(clamp(in.u(), -1, 255)) CALL(where(in.b(), in.x(), in.y())) CALL(
                                            where(in.b({3, 1}), in.x({4}), 2)) CALL(where(in.b(), 1, 2))
                                            CALL(where(in.x(), in.x(), 2)) CALL(
                                                where(in.b({5}), in.x(), 2)) CALL(where(in.b(), 1, in.h()))
                                                CALL(equal(in.x(), in.y())) CALL(not_equal(in.x(), 1)) CALL(
                                                    less(in.x(), in.h())) CALL(less_equal(1, in.x()))
                                                    CALL(greater(in.i(), 2)) CALL(greater_equal(in.u(), 2))
                                                        CALL(logical_and(in.b(), in.b())) CALL(logical_or(
                                                            in.x(), in.y())) CALL(logical_not(in.x()))
                                                            CALL(swiglu(in.x(), in.y())) CALL(swiglu(
                                                                in.x({3, 8}))) CALL(swiglu(in.x({3, 7})))
                                                                CALL(swiglu(in.x({}))) CALL(cast(in.x(), f32))
                                                                    CALL(cast(in.x(), bf16)) CALL(cast(
                                                                        in.x(), i32)) CALL(cast(in.b(), f64))
                                                                        CALL(copy(in.x())) CALL(
                                                                            contiguous(in.x()))
                                                                            CALL(contiguous(
                                                                                transpose(in.x(), 0, 1)))
                                                                                CALL(stop_gradient(in.x()) *
                                                                                     in.x())
                                                                                    CALL(in.x().to(f64))};

const Call shapes[] = {
    CALL(permute(in.x(), {1, 0})) CALL(permute(in.x(), {0})) CALL(permute(in.x(), {1, 1}))
        CALL(transpose(in.x(), -1, 0)) CALL(transpose(in.x(), 0, 2)) CALL(view(in.x(), {12}))
            CALL(view(in.x(), {2, 6})) CALL(view(in.x(), {5})) CALL(view(transpose(in.x(), 0, 1), {12})) CALL(
                reshape(in.x(), {-1, 2})) CALL(reshape(in.x(), {-1, 5})) CALL(reshape(in.x(), {-1, -1}))
                CALL(reshape(transpose(in.x(), 0, 1), {12})) CALL(expand(in.x({1, 4}), {3, 4})) CALL(
                    expand(in.x({4}), {2, 3, 4})) CALL(expand(in.x(), {4})) CALL(expand(in.x(), {3, 5}))
                    CALL(slice(in.x(), 1, 1, 4)) CALL(slice(in.x(), 1, -3, -1)) CALL(slice(in.x(), 0, 0, 9))
                        CALL(slice(in.x(), 1, 0, 4, 3)) CALL(slice(in.x(), 1, 0, 4, 0))
                            CALL(slice(in.x(), 2, 0, 1)) CALL(slice(in.x(), 1, 3, 1)) CALL(squeeze(in.x({3, 1}), 1)) CALL(squeeze(in.x(), 1)) CALL(unsqueeze(in.x(), -1)) CALL(unsqueeze(in.x(), 3)) CALL(unsqueeze(in.x(), 0)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                  in.y(
                                                                                                                                                                                                                                                      {3,
                                                                                                                                                                                                                                                       2}),
                                                                                                                                                                                                                                                  1,
                                                                                                                                                                                                                                                  1)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                        in.y(
                                                                                                                                                                                                                                                                            {3,
                                                                                                                                                                                                                                                                             2}),
                                                                                                                                                                                                                                                                        1,
                                                                                                                                                                                                                                                                        2)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                              in.y(
                                                                                                                                                                                                                                                                                                  {3,
                                                                                                                                                                                                                                                                                                   2}),
                                                                                                                                                                                                                                                                                              1,
                                                                                                                                                                                                                                                                                              3)) CALL(slice_assign(in.x(), in.y({3, 2}), 1, -2)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                    in
                                                                                                                                                                                                                                                                                                                                                                        .y({3, 2}),
                                                                                                                                                                                                                                                                                                                                                                    1,
                                                                                                                                                                                                                                                                                                                                                                    -4)) CALL(slice_assign(in.x(), in.y({3, 2}), 1,
                                                                                                                                                                                                                                                                                                                                                                                           -5)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                  in.y({3, 2}), -1, 0, 3)) CALL(slice_assign(in
                                                                                                                                                                                                                                                                                                                                                                                                                                                                 .x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                             in.y(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                 {3,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                  2}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                             1,
                                                                                                                                                                                                                                                                                                                                                                                                                                                             0, 4)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                      in.y(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                          {3,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                           0}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                      1,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                      4)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                            in.y({3, 0}), 1, 5)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   in.y({3, 2}), 1, 0, far)) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                               in.y(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   {3,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                    2}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                               1,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                               in.i(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   {}))) CALL(slice_assign(in
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                               .x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                           in.y({3, 2}), 1,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                           in
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                               .j(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   {1}))) CALL(slice_assign(in
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                .x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                            in.y(
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                {3, 2}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                            1, in.i({2}))) CALL(slice_assign(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                             in.y({3, 2}), 1, in.z({}))) CALL(slice_at(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                       1, in.i({}), 2)) CALL(slice_at(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                      1, in.i({}), 4)) CALL(slice_at(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                     1, in.i({}), 5)) CALL(slice_at(in.x(), 1, in.i({}), 0)) CALL(slice_at(in.x(), 1, in.i({}), -1)) CALL(slice_at(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   2,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                   in.i({}), 1)) CALL(split(in.x({6}), {1,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                        5})) CALL(split(in
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                            .x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                        {1, 3}, 1)) CALL(split(in.x(), {1, 2}, 1)) CALL(split(in.x(), {})) CALL(split(in.x(), {-1, 4})) CALL(split(in.x(), {3}, 2)) CALL(chunk(in.x({7}), 3)) CALL(chunk(in.x({7}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                         9)) CALL(chunk(in.x({7}), 1)) CALL(chunk(in.x({7}), 0)) CALL(chunk(in.x({0,
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                  2}),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                            3)) CALL(chunk(in.x(), 2, 1)) CALL(chunk(in.x({0, 2}), (1 << 20) + 1)) CALL(unbind(in.x())) CALL(unbind(in.x(),
                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                                    1))
                                CALL(unbind(
                                    in
                                        .x({(1 << 20) +
                                            1}))) CALL(unbind(in.x(),
                                                              2)) CALL(concat({in.x(), in.y()})) CALL(concat({in.x(), in.y()}, 1))
                                    CALL(concat({in.x(), in.h()}, -1)) CALL(concat(
                                        {in.x()}, 2)) CALL(concat({})) CALL(concat({in.x(), in.y({2, 4})})) CALL(concat({in.x(), in.y({2, 4})}, 1))
                                        CALL(stack({in.x(), in.y()})) CALL(stack({in.x(), in.y()}, 2)) CALL(
                                            stack({in.x(), in.y()},
                                                  3)) CALL(stack({in.x(), in.y({4, 3})})) CALL(stack({}))
                                            CALL(pad(in.x(), {1, 0}, {0, 2})) CALL(pad(in.x(), {1, 0}, {0, 2}, 5)) CALL(pad(
                                                in.x(),
                                                {0, 0},
                                                {0,
                                                 0})) CALL(pad(in.x(), {1},
                                                               {1, 1})) CALL(pad(in.x(), {1, 1}, {1}))
                                                CALL(pad(in.x(), {0, -1}, {0, 0})) CALL(pad(in.x(), {0, 0}, {-1, 0})) CALL(pad(
                                                    in.x(),
                                                    {far + 1, 0},
                                                    {0,
                                                     0})) CALL(pad(in.x(), {0, 0},
                                                                   {far + 1,
                                                                    0})) CALL(pad(in.u(), {1, 0}, {0, 0},
                                                                                  256)) CALL(flip(in.x(), 0))
                                                    CALL(flip(in.x(), -1)) CALL(flip(in.x(), 2)) CALL(
                                                        tril(in.x())) CALL(triu(in.x())) CALL(tril(in.h(), 2))
                                                        CALL(triu(in.d(), -1)) CALL(
                                                            tril(in.u(), -100)) CALL(triu(in.x(), 100)) CALL(tril(in.x({4})))
                                                            CALL(triu(in.x({4}))) CALL(tril(
                                                                in.x({1 << 23, 1}),
                                                                1 << 23)) CALL(tril(in.x({(1 << 24) - 1, 1}), 0))
                                                                CALL(tril(in.x({1 << 24, 1}), 0)) CALL(
                                                                    tril(in.x({1, (1 << 24) - 2}),
                                                                         1)) CALL(tril(in.x({1, (1 << 24) - 2}),
                                                                                       2)) CALL(arange(in.g, 0, 5))
                                                                    CALL(arange(in.g, 5, 0, -2)) CALL(arange(
                                                                        in.g, 0, 5,
                                                                        2, f32)) CALL(arange(in.g, 0, 5, 0))
                                                                        CALL(arange(in.g, 0, -1)) CALL(arange(
                                                                            in.g, 0,
                                                                            0)) CALL(arange(in.g, 0, nan))
                                                                            CALL(arange(
                                                                                in.g, 0, inf,
                                                                                inf)) CALL(arange(in.g, 0, 1e16))
                                                                                CALL(arange(in.g, 0, 2, 0.5)) CALL(arange(
                                                                                    in.g, 0.5,
                                                                                    2)) CALL(arange(in.g, 0, 256, 1, u8))
                                                                                    CALL(arange(in.g, 0, 257, 1, u8)) CALL(arange(
                                                                                        in.g, -1, 5, 1,
                                                                                        u8)) CALL(arange(in.g, 0, 2, 1, boolean))
                                                                                        CALL(zeros_like(in.x())) CALL(
                                                                                            ones_like(in.h()))
                                                                                            CALL(full_like(
                                                                                                in.i(),
                                                                                                3))
                                                                                                CALL(full_like(
                                                                                                    in.u(),
                                                                                                    256))
                                                                                                    CALL(full(
                                                                                                        in.g,
                                                                                                        {2},
                                                                                                        1))
                                                                                                        CALL(full(
                                                                                                            in.g,
                                                                                                            {2},
                                                                                                            0.5,
                                                                                                            i64))};

const Call by_index[] = {
    CALL(embedding(in.x(), in.i())) CALL(embedding(in.x(), in.j({2, 2}))) CALL(embedding(
        in.x(), in.y({2}))) CALL(embedding(in.x({4}), in.i())) CALL(index_select(in.x(), 1, in.i({2, 2})))
        CALL(index_select(in.x(), -1, in.i())) CALL(index_select(in.x(), 2, in.i())) CALL(
            index_select(in.x({}), 0, in.i())) CALL(index_add(in.x(), 0, in.i({5}), in.y({5, 4})))
            CALL(index_add(in.x(), 1, in.i({5}), in.y({3, 5}))) CALL(
                index_add(in.x(), 1, in.i({5}),
                          in.y({5, 4}))) CALL(index_add(in.x(), 0, in.i({5}), in.h({5, 4})))
                CALL(index_add(in.x(), 2, in.i({5}), in.y({5, 4}))) CALL(
                    index_assign(in.x(), 0, in.i({5}),
                                 in.y({5, 4}))) CALL(index_assign(in.x(), -1, in.i({5}), in.y({3, 5})))
                    CALL(index_assign(in.x(), 2, in.i({5}), in.y({5, 4}))) CALL(
                        index_assign_each({in.x(), in.y({3, 2})}, 0, in.i({5}), {in.z({5, 4}), in.x({5, 2})}))
                        CALL(index_assign_each({}, 0, in.i(), {})) CALL(
                            index_assign_each({in.x()}, 0, in.i(), {})) CALL(gather(in.x(), 1, in.i({3, 6})))
                            CALL(gather(in.x(), 0, in.i({5, 4}))) CALL(gather(in.x(), 0, in.i({5, 5}))) CALL(
                                gather(in.x(), 0, in.i({5}))) CALL(gather(in.x(), 2, in.i({3, 4})))
                                CALL(scatter_add(in.x(), 0, in.i({5, 4}), in.y({5, 4}))) CALL(scatter_add(
                                    in.x(), 0, in.i({2, 3}),
                                    in.y({4, 4}))) CALL(scatter_add(in.x(), 0, in.i({2, 3}), in.y({1, 4})))
                                    CALL(scatter_add(in.x(), 1, in.i({3, 3}), in.y({3}))) CALL(
                                        scatter_add(in.x(), 2, in.i({3, 3}), in.y({3, 3})))
                                        CALL(one_hot(in.i(), 4)) CALL(one_hot(in.i(), 0)) CALL(
                                            one_hot(in.i(), -1)) CALL(one_hot(in.i({2, 2}), 3, f32))
                                            CALL(top_k(in.x(), 2)) CALL(top_k(in.x(), 3, 0)) CALL(top_k(
                                                in.x(), 4, 0)) CALL(top_k(in.x(), 0)) CALL(top_k(in.x(), -1))
                                                CALL(top_k(in.x(), 1, 2)) CALL(cumsum(in.x(), 0)) CALL(cumsum(
                                                    in.x(), 1, true)) CALL(cumsum(in.x(),
                                                                                  2)) CALL(cumsum(in.b(), 0))
                                                    CALL(
                                                        cumsum(in.u(),
                                                               0)) CALL(sample(in.x(), 1, in.i({3, 2})))
                                                        CALL(sample(in.x(), 0.5, in.i({3, 2}), 3)) CALL(
                                                            sample(in.x(), 0.5, in.i({3, 2}), {},
                                                                   0.5)) CALL(sample(in.x(), in.y({3}),
                                                                                     in.i({3, 2}), in.j({3}),
                                                                                     in.z({3})))
                                                            CALL(sample(in.x(), -1, in.i({3, 2})))
                                                                CALL(sample(in.x(), 0, in.i({3, 2}))) CALL(
                                                                    sample(in.x(), 1, in.i({3, 2}), -1))
                                                                    CALL(sample(in.x(), 1, in.i({3, 2}), 0.5))
                                                                        CALL(sample(in.x(), 1, in.i({3, 2}),
                                                                                    0, 1.5))
                                                                            CALL(sample(in.x(), 1,
                                                                                        in.i({3, 2}), 0, 1))
                                                                                CALL(sample(in.x(), 1,
                                                                                            in.i({3, 2}), 0,
                                                                                            0))
                                                                                    CALL(sample(in.x({}), 1,
                                                                                                in.i({3, 2})))
                                                                                        CALL(sample(
                                                                                            in.x({3, 0}), 1,
                                                                                            in.i({3, 2})))
                                                                                            CALL(sample(
                                                                                                in.x({3}), 1,
                                                                                                in.i({3,
                                                                                                      2})))};

const Call reductions[] = {
    CALL(sum(in.x())) CALL(sum(in.x(), {1})) CALL(sum(in.x(), {-2}, true)) CALL(sum(in.x(), {0, 0})) CALL(sum(
        in.x(), {2})) CALL(sum(in.u(), {0})) CALL(sum(in.b())) CALL(sum(in.h(), {0})) CALL(mean(in.x(), {0}))
        CALL(mean(in.x())) CALL(mean(in.i())) CALL(sum_squares(in.h(), {1})) CALL(sum_squares(in.i())) CALL(
            prod(in.x(), {1})) CALL(prod(in.x({3, 17}), {1})) CALL(prod(in.x({2, 3, 9}), {0, 2}))
            CALL(prod(in.u())) CALL(prod(in.x({0, 3}), {0})) CALL(max(in.x(), {1})) CALL(max(in.h())) CALL(
                max(in.x({0, 3}), {0})) CALL(max(in.x({0, 3}), {1})) CALL(min(in.x(), {0}, true))
                CALL(min(in.i())) CALL(argmax(in.x(), {1})) CALL(argmax(in.x())) CALL(
                    argmin(in.x({0, 3}), {0})) CALL(argmin(in.b(), {0}, true)) CALL(any(in.x()))
                    CALL(any(in.b(), {1}, true)) CALL(all(in.x(), {0})) CALL(all(in.i())) CALL(
                        var(in.x())) CALL(var(in.x(), {1}, true, 0)) CALL(var(in.x(), {0}, false, 3))
                        CALL(var(in.x(), {0}, false, 5)) CALL(var(in.x(), {1}, true, inf))
                            CALL(var(in.h(), {1})) CALL(var(in.i())) CALL(sum_to(in.x(), {4})) CALL(
                                sum_to(in.x(), {3, 1})) CALL(sum_to(in.x(), {1})) CALL(sum_to(in.x(), {}))
                                CALL(sum_to(in.x(), {3, 4})) CALL(sum_to(in.x(), {3})) CALL(
                                    sum_to(in.x(), {1, 3, 4})) CALL(sum_to(in.x(), {3, 5}))
                                    CALL(sum_to(in.x({1, 4}), {3, 4})) CALL(in.x().sum({0}, true)) CALL(
                                        in.x().mean({0})) CALL(in.x().max({1}, true)) CALL(in.x().min({1}))
                                        CALL(softmax(in.x())) CALL(softmax(in.x(), 0)) CALL(softmax(
                                            in.x(), 2)) CALL(softmax(in.i())) CALL(log_softmax(in.h()))
                                            CALL(log_softmax(in.x(), 0)) CALL(logsumexp(in.x())) CALL(
                                                logsumexp(in.x(), {0})) CALL(logsumexp(in.x(), {1}, true))
                                                CALL(logsumexp(in.x({2, 3, 4}), {0, 2})) CALL(
                                                    logsumexp(in.x({2, 3, 4}), {0, 2}, true))
                                                    CALL(logsumexp(in.x({2, 3, 4}), {}, true)) CALL(logsumexp(
                                                        in.x(), {2})) CALL(logsumexp(in.x({0, 3}), {0, 1}))
                                                        CALL(squared_norm({in.x(), in.h()}))
                                                            CALL(squared_norm({in.x(), in.d()})) CALL(
                                                                squared_norm({})) CALL(squared_norm({in.i()}))
                                                                CALL(global_norm({in.x(), in.y({2})}))
                                                                    CALL(global_norm({}))
                                                                        CALL(block_norms({in.x(), in.d()}))
                                                                            CALL(block_norms({in.h({1025})}))
                                                                                CALL(block_norms({}))};

TEST(CallsGolden, GraphsGradientsAndErrorsAreThoseRecorded) {
  const GoldenLines now = results_of({pointwise, shapes, by_index, reductions});
  EXPECT_GT(now.size(), 200u);
  expect_golden(GOLDEN_FILES "ops/calls_golden.txt", now);
}

}  // namespace
