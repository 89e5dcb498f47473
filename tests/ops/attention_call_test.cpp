// Compares the keys that each row or range of rows may see with plain code.
#include "ops/attention_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>

namespace tg {
namespace {

AttentionCall masked(int queries, int keys, int mask, int window_left, int window_right) {
  AttentionCall x;
  x.B = x.H = x.Hk = 1, x.L = queries, x.T = keys;
  x.causal = mask > 0, x.top_left = mask > 1;
  x.window_left = window_left, x.window_right = window_right;
  return x;
}

// Returns whether row r sees key j. The last query has the position of the last key.
bool sees(const AttentionCall& x, std::int64_t r, std::int64_t j) {
  const std::int64_t position = r + x.T - x.L;
  if (x.causal && j > (x.top_left ? r : position)) return false;
  if (x.window_left >= 0 && j < position - x.window_left) return false;
  return x.window_right < 0 || j <= position + x.window_right;
}

template <class F>
void for_each_call(F&& f) {
  for (const int queries : {1, 2, 5, 9})
    for (const int keys : {0, 1, 4, 9, 12})
      for (int mask = 0; mask < 3; ++mask)
        for (const int left : {-1, 0, 3, 100, INT_MAX})
          for (const int right : {-1, 0, 2, 100, INT_MAX}) f(masked(queries, keys, mask, left, right));
}

TEST(AttentionCall, AQuerySeesTheKeysOfTheRule) {
  for_each_call([](const AttentionCall& x) {
    for (int i = 0; i < x.L; ++i) {
      const KeyRange r = keys_visible_to(x, 0, i);
      EXPECT_LE(r.from, r.to);
      for (int j = 0; j < x.T; ++j)
        ASSERT_EQ(j >= r.from && j < r.to, sees(x, i, j))
            << x.L << " queries, " << x.T << " keys, causal " << x.causal << x.top_left << ", window "
            << x.window_left << ", " << x.window_right << ": query " << i << ", key " << j;
    }
    EXPECT_EQ(keys_visible_to(x, 0, x.L).to, 0);  // this query does not exist
  });
}

TEST(AttentionCall, RangesOfRowsSeeTheUnionOfTheirKeys) {
  for_each_call([](const AttentionCall& x) {
    const Band band(x, sequence_of_query(x, 0, 0));
    for (int first = 0; first < x.L; ++first)
      for (int last = first; last < x.L; ++last) {
        const KeyRange some = band.some_of(first, last), every = band.every_of(first, last);
        for (int j = 0; j < x.T; ++j) {
          int seen_by = 0;
          for (int r = first; r <= last; ++r) seen_by += sees(x, r, j);
          const bool in_some = j >= some.from && j < some.to, in_every = j >= every.from && j < every.to;
          ASSERT_TRUE(in_some || seen_by == 0) << j;
          ASSERT_TRUE(!in_every || seen_by == last - first + 1) << j;
          // In the key range of several rows, some keys may be invisible to all rows. But some row sees the
          // first key, and some row sees the last key.
          ASSERT_TRUE(!in_some || (j > some.from && j < some.to - 1) || seen_by > 0) << j;
        }
      }
  });
}

}  // namespace
}  // namespace tg
