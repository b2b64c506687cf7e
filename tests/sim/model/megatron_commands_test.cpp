#include "sim/model/megatron/megatron_commands.hpp"

#include <fmt/format.h>

#include <set>
#include <string>

#include "sim/model/megatron/megatron_words.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::model;

namespace {

// The lines of the commands that are taken.
std::set<int> taken_of(const std::string& script) {
  const auto commands = shell::commands_in(script, "run.sh");
  const TrainingCommands training = training_commands(commands);
  REQUIRE(training.taken.size() == commands.size());
  std::set<int> lines;
  for (std::size_t each = 0; each < commands.size(); ++each) {
    if (training.taken[each] && !commands[each].words.empty()) {
      lines.insert(commands[each].words.front().line);
    }
  }
  return lines;
}

std::vector<std::string> left_out_of(const std::string& script) {
  return training_commands(shell::commands_in(script, "run.sh")).left_out;
}

}  // namespace

TEST_CASE("the command that trains is known by its script's name") {
  const std::string server = "python server.py --bf16 --num-layers 4 --hidden-size 8\n";
  for (const char* run : {"torchrun a/pretrain_gpt.py", "python x.py Train.py", "bash train.sh",
                          "srun -m cyclic python3 -u -m my.trainer", "time ./my_pretraining.py"}) {
    INFO(run);
    CHECK(taken_of(fmt::format("{0}{1} --bf16\n{0}", server, run)) == std::set<int>{2});
  }
  // A script without arguments of Megatron-LM trains nothing.
  CHECK(taken_of(server + "cp train.sh old\npython plot_train.py --width 3") == std::set<int>{1});
  CHECK(taken_of("echo python train.py --bf16\n" + server) == std::set<int>{2});
  CHECK(taken_of("echo python x.py --bf16 | ssh node bash\n") == std::set<int>{1});
}

TEST_CASE("overrides and short options of Megatron-Bridge are arguments of a training") {
  CHECK(taken_of("python x.py --lr 1\ntorchrun train.py model.seq_length=8\n") == std::set<int>{2});
  CHECK(taken_of("python x.py --lr 1\npython setup_experiment.py -tp 2 -ep 4\n") ==
        std::set<int>{2});
}

TEST_CASE("without such a name it is the script with most arguments") {
  CHECK(taken_of("python a.py --bf16\npython b.py --bf16 --num-layers 4\npython b.py --fp16\n") ==
        std::set<int>{3});
}

TEST_CASE("of several commands that train it is the last") {
  CHECK(taken_of("python train.py --bf16\npython train.py --lr 1\n") == std::set<int>{2});
  // Only commands with at least half as many arguments count, and programs before scripts.
  CHECK(taken_of("python train.py --bf16 --lr 1 --swiglu\npython eval_train.py --bf16\n") ==
        std::set<int>{1});
  CHECK(taken_of("python train.py --bf16\nbash train.sh --bf16\n") == std::set<int>{1});
  CHECK(taken_of("f() { python train.py $@; }\nf --bf16\nf --lr 1\n") == std::set<int>{1, 3});
  CHECK(taken_of("f() {\n python train.py --bf16\n}\npython train.py --lr 1\n") ==
        std::set<int>{4});
  CHECK(taken_of("f() {\n python train.py --bf16\n}\nls --all\n") == std::set<int>{2});
  CHECK(taken_of("f() {\n python train.py --bf16\n}\npython x.py --vocab-size 3\n\"$1\"\n") ==
        std::set<int>{2});
  CHECK(
      training_commands(shell::commands_in("python train.py --bf16\npython train.py --lr 1\n", "x"))
          .notes ==
      std::vector<std::string>{"2 commands train (lines 1, 2): that of line 2 is taken"});
}

TEST_CASE("a variable behind a complete argument that is not known is no value of it") {
  const auto kept = [](const std::string& script) {
    std::vector<shell::Word> unknown;
    std::string text;
    for (const shell::Word& word :
         without_unknown(shell::commands_in(script, "x").front(), unknown).words) {
      text += word.text + " ";
    }
    for (const shell::Word& word : unknown) text += "- " + word.text + " ";
    return text;
  };
  CHECK(kept("python train.py --lr 1 $A") == "python train.py --lr 1 - $A ");
  CHECK(kept("python train.py $A --bf16 ${B} --lr=2 $C") ==
        "python train.py --bf16 --lr=2 - $A - ${B} - $C ");
  CHECK(kept("$P train.py --lr $A --data-path $B $C > $D") ==
        "$P train.py --lr $A --data-path $B $C > $D ");
  CHECK(kept("python train.py --lr 1 $(x)") == "python train.py --lr 1 - $(x) ");
  CHECK(kept("python train.py --lr $(x) `y` ${A[@]} --new ${B[*]} $C --data-path ${D[@]}") ==
        "python train.py --lr $(x) --new --data-path ${D[@]} - `y` - ${A[@]} - ${B[*]} - $C ");
}

TEST_CASE("what runs the training is taken") {
  CHECK(
      taken_of("#SBATCH --nodes=2\nsrun --nodes 1 ls\nsrun bash -c 'x\npython train.py --bf16'") ==
      std::set<int>{1, 3, 4});
  CHECK(taken_of("srun --nodes 2 bash <<E\npython x.py\npython train.py --bf16\nE\n") ==
        std::set<int>{1, 3});
  CHECK(taken_of("f() {\n  python train.py $@\n}\ng --bf16\nf --bf16") == std::set<int>{2, 5});
  CHECK(taken_of("torchrun --nnodes 2 run.sh\npython train.py --bf16\nls --all") ==
        std::set<int>{1, 2});
}

TEST_CASE("what is left out is said") {
  CHECK(left_out_of("OLD=(--bf16\n--lr 2)\npython train.py --bf16\npython a.py --bf16 --port 3\n"
                    "ls --all\necho --bf16") ==
        std::vector<std::string>{"2 of a.py (line 4)", "2 of OLD (line 1), which no command uses"});
  CHECK(left_out_of("A=(--bf16)\nB=(\"${A[@]}\")\npython train.py \"${B[@]}\"").empty());
}

TEST_CASE("all is taken where the command that trains is not seen") {
  const auto takes_lists = [](const std::string& script) {
    const auto training = training_commands(shell::commands_in(script, "run.sh"));
    CHECK((!training.takes_lists || training.left_out.empty()));
    return training.takes_lists;
  };
  const std::string lists = "A=(--bf16 --num-layers 3 --lr 1 --hidden-size 4 --swiglu)\n";
  CHECK(takes_lists(lists + "bash inner.sh"));
  CHECK(takes_lists(lists + "python tools/preprocess.py --vocab-size 3\nbash inner.sh"));
  CHECK(takes_lists(lists + "python train.py --bf16 --fp16 --lr 3 $(cat more)"));
  CHECK(takes_lists(lists + "bash train.sh --bf16"));
  CHECK_FALSE(takes_lists(lists + "python train.py --bf16"));
  CHECK_FALSE(takes_lists(lists + "python train.py --bf16 --lr 3 --fp16 --load $MORE"));
  CHECK_FALSE(takes_lists(lists + "python train.py ${A[@]} $(cat more)"));
  CHECK_FALSE(takes_lists("ls --all"));
}
