// Computes the user-defined op f(x, y) = ReLU(x ⊛ y) of [Stratos, Efficient Attention §C]. Also computes two
// losses that the paper differentiates. They use this op.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// t_i = max(0, x_i y_i)
inline Vector relu_product(const Vector& x, const Vector& y) {
  Vector t(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) t[i] = x[i] * y[i] > 0 ? x[i] * y[i] : 0;
  return t;
}

// z_x,i ← z_x,i + 1(x_i y_i > 0) y_i z_t,i and z_y,i ← z_y,i + 1(x_i y_i > 0) x_i z_t,i. z_x and z_y may be
// the same slot.
inline void relu_product_backward(const Vector& x, const Vector& y, const Vector& z_t, Vector& z_x,
                                  Vector& z_y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double indicator = x[i] * y[i] > 0 ? 1 : 0;
    z_x[i] += indicator * y[i] * z_t[i];
    z_y[i] += indicator * x[i] * z_t[i];
  }
}

// L = (f(u, u) + 3u + exp(u)).sum()
inline double shared_operand_loss(const Vector& u) {
  const Vector t = relu_product(u, u);
  double loss = 0;
  for (std::size_t i = 0; i < u.size(); ++i) loss += t[i] + 3 * u[i] + std::exp(u[i]);
  return loss;
}

// ∂L/∂u. Three nodes use u, and the first node uses it twice.
inline Vector shared_operand_gradient(const Vector& u) {
  Vector z_u(u.size(), 0.0);
  relu_product_backward(u, u, Vector(u.size(), 1.0), z_u, z_u);
  for (std::size_t i = 0; i < u.size(); ++i) z_u[i] += 3 + std::exp(u[i]);
  return z_u;
}

// L = layer(layer(u)).sum() with layer(x) = f(w, x) and one shared w
inline double shared_layer_loss(const Vector& w, const Vector& u) {
  double loss = 0;
  for (double t : relu_product(w, relu_product(w, u))) loss += t;
  return loss;
}

struct SharedLayerGradients {
  Vector z_w, z_u;
};

inline SharedLayerGradients shared_layer_gradients(const Vector& w, const Vector& u) {
  const Vector hidden = relu_product(w, u);
  Vector z_hidden(u.size(), 0.0);
  SharedLayerGradients z{Vector(u.size(), 0.0), Vector(u.size(), 0.0)};
  relu_product_backward(w, hidden, Vector(u.size(), 1.0), z.z_w, z_hidden);
  relu_product_backward(w, u, z_hidden, z.z_w, z.z_u);
  return z;
}

}  // namespace tg::reference
