// What a user of the installed library may write first: a product, its gradient, and an error.
#include <glade/glade.h>
#include <iostream>

int main() {
  using namespace glade;
  Tensor x = Tensor::from_vector<float>({1, 2, 3});
  x.set_requires_grad();
  sum(x * x).backward();
  std::cout << x.grad() << '\n';
  if (x.grad().to_vector<float>() != std::vector<float>{2, 4, 6}) return 1;
  try {
    x + ones({4});
  } catch (const ShapeError& error) {
    std::cout << error.what() << '\n';
    return 0;
  }
  return 1;
}
