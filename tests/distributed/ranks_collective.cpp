// Run by distributed_test under mpirun: what processes exchange. Every rank runs every test.
#include <glade/core/process_group.h>
#include <glade/ops/collective/collective.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

/// Ends the connection after the last test.
class Shutdown : public ::testing::Environment {
  void TearDown() override { ProcessGroup::shutdown(); }
};
[[maybe_unused]] const auto* const shutdown_at_end = ::testing::AddGlobalTestEnvironment(new Shutdown);

const ProcessGroup& world() {
  static const ProcessGroup group = ProcessGroup::world();
  return group;
}

constexpr DType kNumbers[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                              DType::int64,   DType::int32,   DType::uint8};

/// Small whole numbers, which differ from rank to rank and which every dtype holds.
std::vector<double> values_of(int rank, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>((i * 3 + rank * 5) % 7));
  return values;
}
Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return to_data(Tensor::from_vector(values, shape), dtype);
}

double reduced(ReduceOp op, std::int64_t count, std::int64_t i) {
  double sum = 0, max = -1, min = 100;
  for (int rank = 0; rank < world().size(); ++rank) {
    const double x = values_of(rank, count)[static_cast<std::size_t>(i)];
    sum += x;
    max = std::max(max, x);
    min = std::min(min, x);
  }
  return op == ReduceOp::sum ? sum : op == ReduceOp::max ? max : op == ReduceOp::min ? min : sum / world().size();
}

TEST(Collective, AllReduceOfEveryDTypeAndSeveralTensors) {
  for (const DType dtype : kNumbers)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::average}) {
      if (op == ReduceOp::average && !is_floating(dtype)) continue;
      const Tensor x = tensor_of(values_of(world().rank(), 6), {2, 3}, dtype),
                   y = tensor_of(values_of(world().rank(), 5), {5}, dtype);
      world().all_reduce({x, y, empty({0}, {dtype, kCPU})}, op).wait();
      for (const auto& [result, count] : {std::pair(x, 6), {y, 5}}) {
        const auto values = result.to_vector<double>();
        for (int i = 0; i < count; ++i)
          EXPECT_NEAR(values[static_cast<std::size_t>(i)], reduced(op, count, i), op == ReduceOp::average ? 0.02 : 0)
              << dtype_name(dtype) << " op " << static_cast<int>(op);
      }
    }
  EXPECT_TRUE(throws_with<DTypeError>([] { world().all_reduce({full({2}, true, {DType::boolean, kCPU})}); }, "bool"));
  EXPECT_TRUE(
      throws_with<DTypeError>([] { world().all_reduce({zeros({2}, {DType::int64, kCPU})}, ReduceOp::average); }, "average"));
}

TEST(Collective, BroadcastGatherScatterAndExchange) {
  const int size = world().size(), rank = world().rank();
  for (const DType dtype : {DType::float64, DType::bfloat16, DType::int64, DType::boolean}) {
    const auto mine = to_data(tensor_of(values_of(rank, 6), {6}, DType::float64), dtype);
    const auto of = [&](int r) { return to_data(tensor_of(values_of(r, 6), {6}, DType::float64), dtype).to_vector<double>(); };
    for (int root = 0; root < size; ++root) {
      const Tensor y = empty_like(mine);
      copy_data(y, mine);
      world().broadcast(Tensors{y}, root).wait();
      EXPECT_EQ(y.to_vector<double>(), of(root));
    }
    const Tensor all = empty({size, 6}, mine.options());
    world().all_gather(all, mine).wait();
    for (int r = 0; r < size; ++r) EXPECT_EQ(select(all, 0, r).to_vector<double>(), of(r));
  }
  const std::int64_t count = 3 * size;
  const Tensor in = tensor_of(values_of(rank, count), {count}, DType::float64), out = empty({3}, in.options());
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::average}) {
    world().reduce_scatter(out, in, op).wait();
    for (int i = 0; i < 3; ++i)
      EXPECT_NEAR(out.to_vector<double>()[static_cast<std::size_t>(i)], reduced(op, count, rank * 3 + i), 1e-14);
  }
  const Tensor exchanged = empty({count}, in.options());
  world().all_to_all(exchanged, in).wait();
  for (int r = 0; r < size; ++r)
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(exchanged.to_vector<double>()[static_cast<std::size_t>(r * 3 + i)],
                values_of(r, count)[static_cast<std::size_t>(rank * 3 + i)]);
  EXPECT_EQ(world().broadcast("rank " + std::to_string(rank), size - 1), "rank " + std::to_string(size - 1));
  EXPECT_EQ(world().broadcast(std::string(), 0), "");
}

TEST(Collective, SplitsIntoGroups) {
  const int size = world().size(), rank = world().rank();
  const ProcessGroup half = world().split(rank % 2, -rank);  // in the opposite order
  EXPECT_EQ(half.size(), (size + 1 - rank % 2) / 2);
  EXPECT_EQ(half.rank(), half.size() - 1 - rank / 2);
  const Tensor x = full({}, rank);
  half.all_reduce({x}).wait();
  double expected = 0;
  for (int r = rank % 2; r < size; r += 2) expected += r;
  EXPECT_EQ(x.item<double>(), expected);
  const ProcessGroup few = half.with_max_ctas(1);  // the same ranks
  few.all_reduce({x}).wait();
  EXPECT_EQ(x.item<double>(), half.size() * expected);
  EXPECT_EQ(few.rank(), half.rank());
  EXPECT_TRUE(throws_with<ValueError>([&] { half.with_max_ctas(-1); }, "-1 is negative"));
  EXPECT_EQ(world().local_size(), size);
  EXPECT_EQ(world().local_rank(), rank);
}

TEST(Collective, SharesDifferByAtMostOne) {
  for (const std::int64_t total : {0, 1, 7, 8, 100}) {
    const auto [begin, end] = world().share(total);
    EXPECT_LE(std::abs(static_cast<double>(end - begin) - static_cast<double>(total) / world().size()), 1);
    const Tensor ends = empty({world().size()}, {DType::int64, kCPU});
    world().all_gather(ends, full({}, end, {DType::int64, kCPU})).wait();
    EXPECT_EQ(begin, world().rank() == 0 ? 0 : ends.to_vector<std::int64_t>()[static_cast<std::size_t>(world().rank() - 1)]);
    EXPECT_EQ(ends.to_vector<std::int64_t>().back(), total);
  }
}

// Every rank throws the same error, and the group is as good as before.
TEST(Collective, DisagreementIsAnErrorOnEveryRank) {
  const bool last = world().rank() == world().size() - 1;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(throws_with<ShapeError>([&] { world().all_reduce({zeros({2, last ? 3 : 4})}); },
                                        "rank 0: all_reduce of float32 [2, 4] on cpu; rank " +
                                            std::to_string(world().size() - 1) + ": all_reduce of float32 [2, 3] on cpu"));
    EXPECT_TRUE(throws_with<ShapeError>([&] { world().all_reduce({zeros({2}), zeros({last ? 3 : 4})}); }, "[2] and 1 more"));
    EXPECT_TRUE(
        throws_with<DTypeError>([&] { world().broadcast(Tensors{zeros({2}, {last ? DType::float64 : DType::float32, kCPU})}); },
                                "broadcast of float64 [2]"));
    EXPECT_TRUE(throws_with<DistributedError>(
        [&] {
          if (last) world().broadcast(Tensors{zeros({2})});
          else world().all_reduce({zeros({2})});
        },
        "rank 0: all_reduce of float32 [2] on cpu"));
    EXPECT_TRUE(throws_with<DistributedError>([&] { world().broadcast(Tensors{zeros({2})}, last ? 1 : 0); }, "reduction 1"));
    EXPECT_TRUE(throws_with<DistributedError>(
        [&] {
          if (last) world().barrier();
          else world().all_reduce({zeros({2})});
        },
        "barrier of no tensor"));
    if (world().rank() < 2) {
      const bool first = world().rank() == 0;
      EXPECT_TRUE(throws_with<ShapeError>([&] { first ? world().send(zeros({3}), 1) : world().recv(zeros({4}), 0).first; },
                                          "send of float32 [3] on cpu"));
    }
    const Tensor x = ones({4});
    world().all_reduce({x}).wait();
    EXPECT_EQ(x.to_vector<double>(), std::vector<double>(4, world().size()));
  }
}

TEST(Collective, RefusesBadArguments) {
  const int size = world().size();
  EXPECT_TRUE(throws_with<ValueError>([&] { world().broadcast(Tensors{zeros({2})}, size); }, "is not in [0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { world().all_gather(zeros({5}), zeros({2})); }, "[5] is not"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { world().all_gather(zeros({2 * size}), zeros({2}, {DType::float64, kCPU})); },
                                      "float64 and float32"));
  EXPECT_TRUE(throws_with<ValueError>([&] { world().all_reduce({transpose(zeros({2, 3}), 0, 1)}); }, "not contiguous"));
  EXPECT_TRUE(throws_with<ValueError>([&] { world().send(zeros({1}), world().rank()); }, "is this process itself"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reduce_scatter(zeros({2 * size + 1})); }, "cannot be cut"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { all_gather(zeros({})); }, "a scalar has no rows"));
}

// ---- gradients: as if one process had all ranks' tensors ------------------------------------------------------------

/// The same on all ranks: the tensor of every rank.
Tensors leaves(const Shape& shape) {
  Tensors all;
  for (int rank = 0; rank < world().size(); ++rank) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(std::sin(static_cast<double>(1 + i + 17 * rank)));
    all.push_back(Tensor::from_vector(values, shape).set_requires_grad());
  }
  return all;
}

/// A rank's loss of what it got.
Tensor loss_of(const Tensor& y, int rank) { return sum(y * y * y * (1.0 + rank)); }

/// Compares the operation, on this rank's tensor, with one that computes rank r's result from all ranks' tensors: values and the
/// gradient of the sum of all losses.
void expect_like_one_process(const Shape& shape, const std::function<Tensor(const Tensor&)>& operation,
                             const std::function<Tensor(const Tensors&, int)>& expected) {
  const int rank = world().rank();
  const Tensors all = leaves(shape), mine = leaves(shape);
  const Tensor x = mine[static_cast<std::size_t>(rank)], y = operation(x);
  EXPECT_TRUE(all_close(y, expected(all, rank), 1e-13, 1e-13));
  loss_of(y, rank).backward();
  Tensor total = zeros({}, {DType::float64, kCPU});
  for (int r = 0; r < world().size(); ++r) total = total + loss_of(expected(all, r), r);
  total.backward();
  const Tensor wanted = all[static_cast<std::size_t>(rank)].grad();
  EXPECT_TRUE(all_close(x.grad(), wanted.defined() ? wanted : zeros_like(x), 1e-12, 1e-12));
}

TEST(CollectiveGradient, OfReductions) {
  const auto sum_of = [](const Tensors& all) {
    Tensor total = all[0];
    for (std::size_t i = 1; i < all.size(); ++i) total = total + all[i];
    return total;
  };
  const double size = world().size();
  expect_like_one_process(
      {2, 3}, [](const Tensor& x) { return all_reduce(x); }, [&](const auto& all, int) { return sum_of(all); });
  expect_like_one_process(
      {2, 3}, [](const Tensor& x) { return all_reduce(x, ReduceOp::average); },
      [&](const auto& all, int) { return sum_of(all) / size; });
  const auto piece = [](const Tensor& x, int rank) { return slice(x, 0, rank * 2, rank * 2 + 2); };
  const Shape shape{2 * world().size(), 3};
  expect_like_one_process(
      shape, [](const Tensor& x) { return reduce_scatter(x); },
      [&](const auto& all, int rank) { return piece(sum_of(all), rank); });
  expect_like_one_process(
      shape, [](const Tensor& x) { return reduce_scatter(x, ReduceOp::average); },
      [&](const auto& all, int rank) { return piece(sum_of(all) / size, rank); });
  EXPECT_TRUE(throws_with<AutogradError>([&] { all_reduce(leaves({2})[0], ReduceOp::max); }, "max and min have no gradient"));
}

TEST(CollectiveGradient, OfCopies) {
  expect_like_one_process(
      {2, 3}, [](const Tensor& x) { return all_gather(x); }, [](const auto& all, int) { return cat(all, 0); });
  for (int root = 0; root < world().size(); ++root)
    expect_like_one_process(
        {3}, [&](const Tensor& x) { return broadcast(x, root); },
        [&](const auto& all, int) { return all[static_cast<std::size_t>(root)]; });
  expect_like_one_process(
      {2 * world().size(), 3}, [](const Tensor& x) { return all_to_all(x); },
      [&](const auto& all, int rank) {
        Tensors parts;
        for (const Tensor& x : all) parts.push_back(slice(x, 0, rank * 2, rank * 2 + 2));
        return cat(parts, 0);
      });
}

// Rank 0 computes x^2, rank 1 the loss of that; x is not contiguous.
TEST(CollectiveGradient, OfSendAndRecv) {
  if (world().rank() > 1) return;
  const Tensors all = leaves({3, 2});
  if (world().rank() == 0) {
    send(transpose(all[0] * all[0], 0, 1), 1).backward();
    EXPECT_TRUE(all_close(all[0].grad(),
                          6.0 * all[0].detach() * all[0].detach() * all[0].detach() * all[0].detach() * all[0].detach(), 1e-12));
    send(all[1].detach(), 1);
  } else {
    const Tensor y = recv({2, 3}, {DType::float64, kCPU}, 0);
    EXPECT_TRUE(all_close(y, transpose(all[0] * all[0], 0, 1)));
    sum(y * y * y).backward();
    EXPECT_FALSE(recv({3, 2}, {DType::float64, kCPU}, 0).requires_grad());
  }
}

}  // namespace
}  // namespace glade
