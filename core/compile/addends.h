// Addends: a sum of products is made by the products themselves. Each product adds what was summed before it
// to its own result, as linear() adds a residual, and the pass that read all terms is gone.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/join.h"

namespace tg {

// Removes chains that are nothing but a sum of values of one layout, if each of these except for the one that
// is made first is the result of a matmul without an addend that nothing else reads. With T terms of S bytes,
// all of them products, that saves 2·S of (2·T + 1)·S bytes. The last product writes the sum: `joined` says
// where, if the sum has another shape. In half types the sum so far is rounded, as it is stored, but the
// product that it is added to is not.
//
// Not for programs of rows_alone: a term that is broadcast over texts lies as the sum does if there is one
// text, and a row of a half type would have other bits alone.
void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs);

}  // namespace tg
