#include <glade/core/interrupt.h>

#include <chrono>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/linear_attention.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::random_leaf;
using testing_support::random_tensor;

struct Stopped {};

class Interrupt : public ::testing::Test {
 protected:
  // From now on whatever asks is stopped.
  void stop() {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // nobody asks twice within 50
    set_interrupt_check([] { throw Stopped{}; });
  }
  void go_on() { set_interrupt_check(nullptr); }
  void TearDown() override { go_on(); }
};

TEST_F(Interrupt, NothingIsCheckedUnlessSet) {
  check_interrupt();
  Interruption interruption;
  EXPECT_FALSE(interruption.requested());
  interruption.rethrow();
}

TEST_F(Interrupt, IsAskedForAtIntervals) {
  static int calls;
  calls = 0;
  set_interrupt_check([] { ++calls; });
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + std::chrono::milliseconds(300); Clock::now() < end;) check_interrupt();
  EXPECT_GE(calls, 2);
  EXPECT_LE(calls, 7);
}

TEST_F(Interrupt, EndsALoopOnAllItsThreads) {
  stop();
  Interruption interruption;
  const auto loop = [&] {
    while (!interruption.requested()) std::this_thread::yield();
  };
  std::thread other(loop);
  loop();
  other.join();
  EXPECT_THROW(interruption.rethrow(), Stopped);
}

TEST_F(Interrupt, EndsLongOperations) {
  const Tensor a = random_tensor({8, 8}), batch = random_tensor({64, 8, 8});
  const Tensor x = random_tensor({1, 40, 2, 4});
  for (const Algorithm algorithm : {Algorithm::recurrent, Algorithm::chunk}) {
    RecurrentOptions options;
    options.algorithm = algorithm;
    stop();
    EXPECT_THROW(recurrent(x, x, x, options), Stopped);
    go_on();
    EXPECT_NO_THROW(recurrent(x, x, x, options));
  }
  for (const Tensor& operand : {a, batch}) {
    stop();
    EXPECT_THROW(matmul(operand, a), Stopped);
    go_on();
    EXPECT_NO_THROW(matmul(operand, a));
  }
}

TEST_F(Interrupt, EndsBackwardBeforeAnyLeafHasItsGradient) {
  const Tensor x = random_leaf({3}), y = random_leaf({3});
  x.set_grad(ones_like(x));
  const Tensor loss = sum(x * y);
  stop();
  EXPECT_THROW(loss.backward(), Stopped);
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(3, 1.0));
  EXPECT_FALSE(y.grad().defined());
  go_on();
  sum(x * y).backward();
  EXPECT_TRUE(testing_support::all_close(y.grad(), x.detach()));
}

}  // namespace
}  // namespace glade
