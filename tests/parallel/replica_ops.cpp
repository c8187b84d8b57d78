// Operators that exchange values between replicas: the next replica's values, and the sum over all of them.
#include <poptorch/custom_op.hpp>

using namespace poptorch;

namespace {

// The values of the replica `by` further on.
class Turn : public Op {
public:
  static constexpr bool communicates = true;
  explicit Turn(const Attributes &attributes) : by_(attributes.getAttribute<Attributes::Int>("by")) {}
  explicit Turn(int64_t by) : by_(by) {}

  void setup() override { outInfo(0) = inInfo(0); }

  void compute(const Kernel &kernel) const override {
    const int64_t count = kernel.inInfo(0).nelms(), replicas = kernel.replicas();
    const std::vector<float> all = kernel.allGather(kernel.in<float>(0), count);
    const int64_t from = ((kernel.replica() + by_) % replicas + replicas) % replicas;
    std::copy(all.begin() + from * count, all.begin() + (from + 1) * count, kernel.out<float>(0));
  }

  std::vector<std::unique_ptr<Op>> getGradOps() const override {
    std::vector<std::unique_ptr<Op>> result;
    result.push_back(std::make_unique<Turn>(-by_));
    return result;
  }
  std::vector<GradInOutMapper> gradInputInfo() const override { return {{0, 0, GradOpInType::GradOut}}; }
  std::map<int, int> gradOutToNonGradIn() const override { return {{0, 0}}; }

private:
  int64_t by_;
};

const OpCreator<Turn> turn(OperatorIdentifier{"tests.replicas", "Turn", 1, 1, 1});

} // namespace
