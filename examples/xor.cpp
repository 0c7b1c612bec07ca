// A network of two layers learns exclusive or.
#include <glade/glade.h>

#include <iostream>

using namespace glade;

struct Net : nn::Module {
  nn::Linear hidden{2, 8}, output{8, 1};

  Net() {
    register_module("hidden", hidden);
    register_module("output", output);
  }
  Tensor operator()(const Tensor& x) const { return sigmoid(output(tanh(hidden(x)))); }
};

int main() {
  manual_seed(0);
  const Tensor x = Tensor::from_vector<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2});
  const Tensor y = Tensor::from_vector<float>({0, 1, 1, 0}, {4, 1});

  Net net;
  nn::optim::AdamW optimizer(net.named_parameters(), {.lr = 0.05});
  for (int step = 1; step <= 200; ++step) {
    const Tensor loss = mse_loss(net(x), y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0) std::cout << "step " << step << "  loss " << loss.item<float>() << '\n';
  }
  std::cout << net(x) << '\n';
}
