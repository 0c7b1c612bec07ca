// The operation of docs/tuning.md, which shows what stands between the two lines.
#include <cstdlib>
#include <filesystem>

#include <glade/glade.h>

#include "support/process.h"
#include "support/testing.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

// ---- shown in docs/tuning.md
enum class Method { reduction, product };

struct RowSumConfig {
  Method method = Method::reduction;
  void visit(tuning::Fields& f) { f.choice("method", method, {"reduction", "product"}); }
  bool operator==(const RowSumConfig&) const = default;
};

struct RowSumProblem : tuning::Problem {
  std::int64_t rows = 1, columns = 1;
};

class RowSum : public tuning::OperationModule<RowSumProblem, RowSumConfig> {
 public:
  const char* name() const override { return "row_sum"; }
  void describe(const RowSumProblem& p, tuning::Key& key) const override {
    key.add("rows", tuning::bucket(p.rows)).add("columns", tuning::bucket(p.columns));
  }
  RowSumConfig heuristic_cfg(const RowSumProblem&) const override { return {Method::reduction}; }
  std::vector<RowSumConfig> candidate_cfgs(const RowSumProblem&) const override {
    return {{Method::reduction}, {Method::product}};
  }
  void check_cfg(const RowSumProblem& p, const RowSumConfig& cfg) const override {
    if (cfg.method == Method::product && p.columns > 1 << 20)
      throw ValueError("row_sum: cfg: method product takes at most 2^20 columns");
  }
  Tensors sample(const RowSumProblem& p, Generator& generator) const override {
    Tensor x = normal({p.rows, p.columns}, 0, 1, {p.dtype, p.device}, generator);
    if (p.pass == tuning::Pass::backward) x.set_requires_grad();
    return {x};
  }
  Tensors run(const RowSumProblem& p, const RowSumConfig& cfg, const Tensors& inputs) const override {
    if (cfg.method == Method::reduction) return {sum(inputs[0], {1})};
    return {matmul(inputs[0], ones({p.columns}, inputs[0].options()))};
  }
};

Tensor row_sum(const Tensor& x) {
  const RowSumProblem problem{{x.device(), x.dtype()}, x.size(0), x.size(1)};
  const RowSum module;
  return module.run(problem, module.choose(problem).cfg, {x})[0];
}
// ---- end

class TuningExample : public FolderTest {};

TEST_F(TuningExample, TheOperationOfTheGuideWorks) {
  setenv("GLADE_CACHE_DIR", std::filesystem::current_path().c_str(), 1);
  const Tensor x = random_tensor({5, 7}, kCPU, DType::float32);
  EXPECT_TRUE(all_close(row_sum(x), sum(x, {1}), 1e-6, 1e-6));
  tuning::set_autotune_policy(tuning::AutotunePolicy::autotune);
  EXPECT_TRUE(all_close(row_sum(x), sum(x, {1}), 1e-6, 1e-6));
  tuning::set_autotune_policy(std::nullopt);
  const RowSumProblem problem{{x.device(), x.dtype()}, x.size(0), x.size(1)};
  EXPECT_EQ(RowSum().choose(problem).source, tuning::Source::process_cache);
  EXPECT_TRUE(std::filesystem::exists("row_sum.json"));
  unsetenv("GLADE_CACHE_DIR");
}

TEST(TuningGuide, ShowsThisOperation) {
  const std::string guide = read_file(GLADE_TEST_DATA "/../../docs/tuning.md"),
                    source = read_file(GLADE_TEST_DATA "/../ops/tuning_example_test.cpp");
  const std::string from = "// ---- shown in docs/tuning.md\n", to = "// ---- end\n";
  const std::size_t begin = source.find(from) + from.size();
  EXPECT_NE(guide.find("```cpp\n" + source.substr(begin, source.find(to) - begin) + "```"), std::string::npos);
}

}  // namespace
