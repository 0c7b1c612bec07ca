#pragma once
// What the tests share: devices, random tensors, comparison.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <glade/autograd/engine.h>
#include <glade/autograd/gradcheck.h>
#include <glade/core/tensor.h>

namespace glade::testing_support {

/// Tests of what runs on every device: TEST_P(Name, Case) with device() as the device under test. The CUDA instance is
/// skipped, and counted as skipped, on a machine without a GPU.
class DeviceTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceType::cuda && !cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  Device device() const { return Device{GetParam(), 0}; }
};

inline auto device_values() { return ::testing::Values(DeviceType::cpu, DeviceType::cuda); }
inline std::string device_test_name(const ::testing::TestParamInfo<DeviceType>& info) {
  return info.param == DeviceType::cpu ? "cpu" : "cuda";
}
/// Instantiates a DeviceTest suite for every device. A macro, because GoogleTest's is.
#define GLADE_DEVICE_TESTS(suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::glade::testing_support::device_values(), ::glade::testing_support::device_test_name)

/// Normal random numbers, fresh for every call of the process but the same from run to run.
inline Tensor random_tensor(const Shape& shape, Device device = kCPU, DType dtype = DType::float64, double mean = 0,
                            double deviation = 1) {
  static std::mt19937_64 engine(20240607);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (double& x : values) x = normal(engine);
  return to_data(to_data(Tensor::from_vector(values, shape), dtype), device);
}

inline Tensor random_leaf(const Shape& shape, Device device = kCPU, double mean = 0, double deviation = 1) {
  return random_tensor(shape, device, DType::float64, mean, deviation).set_requires_grad();
}

/// Shapes equal and |a - b| <= absolute + relative * |b| in every element, computed in float64; NaN equals NaN.
inline ::testing::AssertionResult all_close(const Tensor& a, const Tensor& b, double relative = 1e-12, double absolute = 1e-12) {
  if (!(a.shape() == b.shape()))
    return ::testing::AssertionFailure() << "shapes " << a.shape().str() << " and " << b.shape().str();
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = (std::isnan(x[i]) && std::isnan(y[i])) || x[i] == y[i];
    if (!same && !(std::abs(x[i] - y[i]) <= absolute + relative * std::abs(y[i])))
      return ::testing::AssertionFailure() << "element " << i << ": " << x[i] << " against " << y[i];
  }
  return ::testing::AssertionSuccess();
}

/// ||a - b|| / ||b||, in float64; NaN where either has one.
inline double relative_error(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  if (x.size() != y.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// The largest difference over the largest value of b.
inline double largest_error(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  EXPECT_EQ(x.size(), y.size());
  if (x.size() != y.size()) return INFINITY;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference = std::max(difference, std::abs(x[i] - y[i]));
    largest = std::max(largest, std::abs(y[i]));
  }
  return difference / largest;
}

/// Whether `statement` throws E and the message contains `text`.
template <class E, class F>
::testing::AssertionResult throws_with(F&& statement, const std::string& text) {
  try {
    statement();
  } catch (const E& error) {
    if (std::string(error.what()).find(text) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "message '" << error.what() << "' does not contain '" << text << "'";
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "another exception: " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace glade::testing_support
