#include <glade/ops/collective/average_pieces.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class AveragePieces : public DeviceTest {};
GLADE_DEVICE_TESTS(AveragePieces);

/// The averages over rows, in the arithmetic of A.
template <class A>
std::vector<A> averages(const std::vector<A>& rows, std::size_t ranks) {
  const std::size_t n = rows.size() / ranks;
  std::vector<A> result(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) result[i] += rows[rank * n + i];
    result[i] /= static_cast<A>(ranks);
  }
  return result;
}

TEST_P(AveragePieces, AreSumsInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 11})
    for (const std::int64_t n : {1, 7, 64, 1000, 4099, 65536})
      for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
        const Tensor pieces = random_tensor({ranks * n}, device(), dtype, 3);
        const Tensor out = empty({n}, {dtype, device()});
        average_pieces(out, pieces, ranks);
        const auto rows = static_cast<std::size_t>(ranks);
        if (dtype == DType::float64) {
          EXPECT_EQ(out.to_vector<double>(), averages(pieces.to_vector<double>(), rows)) << ranks << " " << n;
        } else {
          const auto sums = averages(pieces.to_vector<float>(), rows);
          EXPECT_EQ(out.to_vector<float>(), to_data(Tensor::from_vector(sums, {n}), dtype).to_vector<float>())
              << ranks << " " << n << " " << dtype_name(dtype);
        }
      }
}

}  // namespace
}  // namespace glade
