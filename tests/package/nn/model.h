// A user's class Model, which coexists with tg::nn::Model.
#pragma once

#include <tilegrad/tilegrad.h>

class Model {
 public:
  explicit Model(tg::nn::Params& params)
      : inner_(params, {.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 8}) {}
  const tg::nn::Model& inner() const { return inner_; }

 private:
  tg::nn::Model inner_;
};
