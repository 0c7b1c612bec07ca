// A program that links libglade.so: exceptions and streams of the program's C++ runtime work in the library's, and back.
#include <glade/glade.h>

#include <exception>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <typeinfo>

using namespace glade;

namespace {

int failures = 0;

void expect(bool good, const char* what) {
  if (good) return;
  std::cerr << "failed: " << what << '\n';
  ++failures;
}

void add_shapes_that_do_not_fit() { ones({3}) + ones({4}); }

template <class Caught>
bool is_caught_as() {
  try {
    add_shapes_that_do_not_fit();
  } catch (const Caught& error) {
    return typeid(error) == typeid(ShapeError) && std::string(error.what()).find("[4]") != std::string::npos;
  } catch (...) {
  }
  return false;
}

bool is_rethrown() {
  std::exception_ptr held;
  try {
    add_shapes_that_do_not_fit();
  } catch (...) {
    held = std::current_exception();
  }
  try {
    std::rethrow_exception(held);
  } catch (const ShapeError&) {
    return true;
  }
}

}  // namespace

int main() {
  expect(is_caught_as<ShapeError>(), "a ShapeError is caught as what it is");
  expect(is_caught_as<Error>(), "a ShapeError is caught as an Error");
  expect(is_caught_as<std::exception>(), "a ShapeError is caught as a std::exception");
  expect(is_rethrown(), "a ShapeError is held and thrown again");

  const Tensor x = Tensor::from_vector<float>({1.5F, -2});
  std::cout << x << '\n';
  std::ostringstream text;
  text << std::setprecision(3) << x << ' ' << 0.5 << ' ' << std::hex << 255;
  expect(text.str() == x.str() + " 0.5 ff", "a tensor and numbers are written to one stream");
  expect(std::cout.good() && text.good(), "the streams are good");
  return failures;
}
