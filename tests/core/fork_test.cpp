// A process that forks after it has computed on several threads.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

#include <sys/wait.h>
#include <unistd.h>

#include "support/testing.h"

namespace glade {
namespace {

double compute() {
  const Tensor x = ones({1024, 1024});
  return sum(matmul(exp(x * 0.0), x)).item<double>();
}

TEST(Fork, AChildComputesToo) {
  const double expected = compute();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);  // instead of waiting for ever
    ::_exit(compute() == expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(compute(), expected);
}

}  // namespace
}  // namespace glade
