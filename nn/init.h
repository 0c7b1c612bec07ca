#pragma once
// Initializers: fill a tensor in place, unrecorded, and return it. Random numbers come from `generator`.
#include <numbers>

#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade::nn::init {

/// Within its scope, on this thread, initializers leave values as they are: for models that are about to be loaded.
class SkipInit {
 public:
  SkipInit();
  ~SkipInit();
  SkipInit(const SkipInit&) = delete;
  SkipInit& operator=(const SkipInit&) = delete;

 private:
  bool before_;
};

const Tensor& constant_(const Tensor& x, double value);  ///< Every element becomes `value`, converted to x's dtype.
inline const Tensor& zeros_(const Tensor& x) { return constant_(x, 0); }  ///< constant_(x, 0)
inline const Tensor& ones_(const Tensor& x) { return constant_(x, 1); }   ///< constant_(x, 1)
/// Uniform in [low, high).
const Tensor& uniform_(const Tensor& x, double low, double high, Generator& generator = default_generator());
/// Normal.
const Tensor& normal_(const Tensor& x, double mean = 0, double deviation = 1, Generator& generator = default_generator());
/// Normal, but only values within [low, high]. ValueError unless deviation is positive and low < high.
const Tensor& trunc_normal_(const Tensor& x, double mean = 0, double deviation = 1, double low = -2, double high = 2,
                            Generator& generator = default_generator());
/// Of a weight [out, in, ...]: what an output is summed over, in times the further dimensions, or what an input goes to, out
/// times those.
enum class Fan { in, out };
/// For a weight [out, in, ...]: uniform within +-gain * sqrt(3 / fan) (He et al. 2015). gain is sqrt(2) in front of relu, 1 for a
/// linear layer. ShapeError for less than two dimensions.
const Tensor& kaiming_uniform_(const Tensor& x, double gain = std::numbers::sqrt2, Generator& generator = default_generator(),
                               Fan fan = Fan::in);
/// The same, but normal with deviation gain / sqrt(fan).
const Tensor& kaiming_normal_(const Tensor& x, double gain = std::numbers::sqrt2, Generator& generator = default_generator(),
                              Fan fan = Fan::in);
/// Uniform within +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).
const Tensor& xavier_uniform_(const Tensor& x, double gain = 1, Generator& generator = default_generator());
/// Normal with deviation gain * sqrt(2 / (fan_in + fan_out)).
const Tensor& xavier_normal_(const Tensor& x, double gain = 1, Generator& generator = default_generator());

}  // namespace glade::nn::init
