// fine_tune FOLDER NEW_FOLDER: opens a published model, lets it write, trains it on what it should have written, saves it.
#include <glade/glade.h>

#include <cstdio>

using namespace glade;
using nn::models::GLAForCausalLM;

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("fine_tune FOLDER NEW_FOLDER\n", stderr);
    return 2;
  }
  const Device device = Device::parse("auto");
  const auto model = GLAForCausalLM::from_pretrained(argv[1], {.device = device});

  // Prompts of any lengths, each continued token by token.
  const auto written = model->generate({{12, 85, 84}, {78}}, {.max_new_tokens = 8, .temperature = 0.8, .seed = 1});
  for (const auto& tokens : written) {
    for (const auto token : tokens) std::printf("%lld ", static_cast<long long>(token));
    std::putchar('\n');
  }

  const Tensor ids = Tensor::from_vector<std::int64_t>({12, 85, 84, 78, 44, 3, 60, 9}, {1, 8}, device);
  nn::optim::AdamW optimizer(model->named_parameters(), {.lr = 1e-3});
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model->loss(slice(ids, 1, 0, 7), slice(ids, 1, 1, 8));
    loss.backward();
    optimizer.step();
    if (step % 10 == 9) std::printf("step %d  loss %.3f\n", step + 1, loss.item<double>());
  }
  model->save_pretrained(argv[2]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "fine_tune: %s\n", error.what());
  return 1;
}
