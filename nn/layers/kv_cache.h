// KvCache: keys and values of the tokens that a model has read, so that each further token costs one row of
// everything except attention's reads. Its tensors are parameters that programs extend at the end of a run.
// CacheCall: what a model's layers see of it.
#pragma once

#include <map>
#include <optional>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/paged_attn.h>

namespace tg::nn {

class KvCache {
 public:
  // Pages with room for `page_size` tokens each. Either every text has one page, which is then as large as a
  // text may become, or many small ones, wherever there are free ones (PagePool). A tensor is allocated, with
  // zeros, when the first graph extends it. Rows are kept in `dtype`, in which attention is then computed, or
  // else as they come. Throws ShapeError for sizes that are not positive, DTypeError for a dtype that is not
  // floating.
  KvCache(std::int64_t pages, std::int64_t page_size, Device device = Device::cpu(),
          std::optional<DType> dtype = {});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t pages() const { return pages_; }
  std::int64_t page_size() const { return page_size_; }
  std::size_t bytes() const;
  // By layer and kind: [pages·page_size, heads, n], a row for each token.
  const std::map<std::string, Parameter>& tensors() const { return tensors_; }

 private:
  friend class CacheCall;
  std::int64_t pages_, page_size_;
  Device device_;
  std::optional<DType> dtype_;
  std::map<std::string, Parameter> tensors_;
};

// One call of a model on tokens that follow those in a cache: attention layers append to the cache and read
// all of it. How many tokens a text has is an input, so one program serves every position in every text.
class CacheCall {
 public:
  // For a cache with one page for each text: `length` new tokens in each of them. The graph gets the input
  // "cached" (i32 [texts]); a run in which a text outgrows its page fails with an Error. Throws ShapeError
  // for a length outside 1 … page_size.
  CacheCall(Graph& graph, KvCache& cache, std::int64_t length);
  // For any `texts` of a cache in pages: the last `length` tokens of each, of which those that are in the
  // cache already, and those before a text that is shorter, are to be left out when rows are written. The
  // graph gets the inputs "rows" (i32 [texts, length]), "lengths" (i32 [texts]) and "table" (i32 [texts,
  // `room` pages]). A token's results have the same bits in any company (paged_attn). Throws ShapeError for
  // sizes that are not positive.
  CacheCall(Graph& graph, KvCache& cache, std::int64_t texts, std::int64_t length, std::int64_t room);

  // To be fed. Of a cache with one page for each text: tokens in the cache so far, i32 [texts].
  const Tensor& cached() const { return cached_; }
  // Of a cache in pages: for each token the number of its row, page·page_size + place, or −1 to write none;
  // each text's tokens, those in the call included; its pages, as many as it has tokens for.
  const Tensor& rows() const { return rows_; }
  const Tensor& lengths() const { return lengths_; }
  const Tensor& table() const { return table_; }

  const Tensor& positions() const { return positions_; }  // i32 [texts, length]: of the new tokens

  // Throws ShapeError for x [texts, length, …] of other sizes than the call's.
  void check(TensorArg x) const;
  // Appends keys [texts, Hk, length, d] and values [texts, Hk, length, dv] to the cache's tensors name + ".k"
  // and ".v". Each query [texts, H, length, d] sees the keys of its text up to its own, → o [texts, H,
  // length, dv] in q's dtype. Throws ShapeError and DTypeError for rows that do not fit the call or what the
  // cache holds.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, TensorArg v,
                const PagedAttentionOptions& options = {});
  // The same where the first `value_width` numbers of a key, 1 … d, are its value; they are kept once, under
  // `name`.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, std::int64_t value_width,
                const PagedAttentionOptions& options = {});
  // For CompileOptions::assign: compile() throws Error for a program that computes attend() but does not
  // assign what it appended.
  const std::vector<Assign>& assign() const { return assign_; }

 private:
  // All rows of the cache's tensor of this name, and new ones [texts, length, heads, n] to be put among them.
  struct Rows {
    Parameter held;
    Tensor added;
  };
  Rows rows_of(const std::string& name, const TensorArg& in);
  std::vector<Tensor> append(const std::vector<Rows>& tensors);
  Tensor attention(const Tensor& in, const Tensor& k, const Tensor& v, const PagedAttentionOptions& o) const;

  KvCache& cache_;
  Tensor cached_, rows_, lengths_, table_, positions_;
  std::vector<Assign> assign_;
};

}  // namespace tg::nn
