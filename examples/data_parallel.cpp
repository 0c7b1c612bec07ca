// data_parallel TEXT MODEL: trains a small language model on the bytes of a text, on all processes that mpirun starts.
#include <glade/glade.h>

#include <cstdio>

using namespace glade;

constexpr std::int64_t kBatch = 8, kTokens = 32, kSteps = 60;

void train(const char* text, const char* model_file) {
  const ProcessGroup world = ProcessGroup::world();                        // rank 2 of 4, say
  const Device device = world.device();                                    // a GPU of its own, or the CPU
  const std::pair<std::int64_t, std::int64_t> mine = world.share(kBatch);  // this rank's sequences of each batch

  const auto data = std::make_shared<nn::data::TokenData>(std::vector<std::string>{text});
  nn::data::Loader loader(data, {.batch_size = kBatch, .seq_len = kTokens, .share = mine, .device = device});

  manual_seed(0);
  nn::models::GLAConfig config;
  config.vocab_size = data->vocab_size();
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  nn::models::GLAForCausalLM model(config);
  model.to(device);
  nn::distributed::DataParallel parallel(model);  // all begin with rank 0's weights
  nn::optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});

  // A rank's loss is the mean over its own sequences. Where ranks have different numbers of them, they count by these.
  const double weight = static_cast<double>(world.size() * (mine.second - mine.first)) / kBatch;
  for (int step = 1; step <= kSteps; ++step) {
    const nn::data::Batch batch = loader.next();
    const Tensor loss = model.loss(batch.inputs, batch.targets) * weight;
    loss.backward();  // averages gradients over the ranks as they become final
    const Tensor shown = loss.detach();
    parallel.wait({shown});  // from here on gradients and loss are those of the whole batch
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    if (step % 20 == 0 && world.rank() == 0) std::printf("step %d  loss %.3f\n", step, shown.item<double>());
  }

  if (world.rank() == 0) {  // all ranks have the same weights
    nn::Checkpoint checkpoint;
    checkpoint.step = kSteps;
    checkpoint.config = model.config_json();
    checkpoint.model = model.state_dict();
    nn::save(checkpoint, model_file);
  }
  ProcessGroup::shutdown();  // waits for rank 0
}

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("data_parallel TEXT MODEL\n", stderr);
    return 2;
  }
  train(argv[1], argv[2]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "data_parallel: %s\n", error.what());
  return 1;
}
