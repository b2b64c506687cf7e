#include "sim/model/shell_words.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::model;

namespace {

// Its words with a space between two, commands with a " ; ".
std::string words_of(const std::string& script) {
  std::string text;
  for (const ShellWord& word : shell_words(script, "run.sh")) {
    if (!text.empty()) text += ' ';
    text += word.text.empty() ? ";" : "<" + word.text + ">";
  }
  return text;
}

}  // namespace

TEST_CASE("shell words: words in place of a variable that is set") {
  CHECK(words_of("F=1\nrun ${F:+--fp8 hybrid} x") == "<run> <--fp8> <hybrid> <x> ;");
  CHECK(words_of("F=1\nrun ${F+--fp8 hybrid}") == "<run> <--fp8> <hybrid> ;");
  CHECK(words_of("run ${F:+--fp8 hybrid} x") == "<run> <x> ;");
  CHECK(words_of("F=\nrun ${F:+--fp8} ${F+--empty}") == "<run> <--empty> ;");
  CHECK(words_of("N=4\nF=1\nrun \"${F:+a $N}\"") == "<run> <a 4> ;");
}

TEST_CASE("shell words: fallbacks of a variable that is empty") {
  CHECK(words_of("N=\nrun ${N:-8} ${N-9}x ${M-7}") == "<run> <8> <x> <7> ;");
  CHECK(words_of("N=\nrun ${N:=8} $N") == "<run> <8> <8> ;");
  CHECK(words_of("N=4\nrun ${N:?not set} ${M:?not set}") == "<run> <4> <${M:?not set}> ;");
}

TEST_CASE("shell words: a part of a variable") {
  const std::string set = "N=12345\nI=1\nrun ";
  CHECK(words_of(set + "${N:0:2}") == "<run> <12> ;");
  CHECK(words_of(set + "${N:3}") == "<run> <45> ;");
  CHECK(words_of(set + "${N: -2}") == "<run> <45> ;");
  CHECK(words_of(set + "${N:1:-1}") == "<run> <234> ;");
  CHECK(words_of(set + "${N:I:$I+1}") == "<run> <23> ;");
  CHECK(words_of(set + "x${N:9}") == "<run> <x> ;");
  for (const char* unknown : {"${N:4:-3}", "${N:x}", "${M:0:2}", "${N:9223372036854775807}"}) {
    CHECK(words_of(set + unknown) == "<run> <" + std::string(unknown) + "> ;");
  }
}

TEST_CASE("shell words: other operations stay as they are written") {
  for (const char* unknown : {"${N#1}", "${N##*1}", "${N%5}", "${N/1/2}", "${N^^}", "${#N}",
                              "${!N}", "${N@Q}", "${N:}"}) {
    CHECK(words_of("N=12345\nrun " + std::string(unknown)) ==
          "<run> <" + std::string(unknown) + "> ;");
  }
}

TEST_CASE("shell words: spaces of a variable without quotes end words") {
  CHECK(words_of("M='moe_act layernorm'\nrun --m $M \"$M\"") ==
        "<run> <--m> <moe_act> <layernorm> <moe_act layernorm> ;");
  CHECK(words_of("N=$(nodes | wc -l)\nrun $N") == "<run> <$(nodes | wc -l)> ;");
}

TEST_CASE("shell words: a here-document is a script with its own quotes") {
  CHECK(words_of("bash <<EOF\nrun \"a|b c\" 'd;e' | tee\nEOF\nnext") ==
        "<bash> ; <run> <a|b c> <d;e> ; <tee> ; <next> ;");
  CHECK(words_of("N=4\nbash <<EOF\nrun '$N' \"$N\" \\$N\nEOF") == "<bash> ; <run> <4> <4> <4> ;");
  CHECK(words_of("N=4\nbash <<'EOF'\nrun '$N' \"$N\" \\$N\nEOF") ==
        "<bash> ; <run> <$N> <4> <$N> ;");
  CHECK(words_of("bash <<EOF\nM=3\nrun \\$M \\\\\n  x\nEOF") == "<bash> ; <run> <3> <x> ;");
}

TEST_CASE("shell words: quotes of a text that does not close them are no quotes") {
  CHECK(words_of("cat <<EOF\ndon't \"run\" this\nEOF\nrun 'a b'") ==
        "<cat> ; <dont> <run> <this> ; <run> <a b> ;");
  CHECK(words_of("a <<A\nb <<B\nit's\nB\nrun \"c d\"\nA") == "<a> ; <b> ; <its> ; <run> <c d> ;");
}

TEST_CASE("shell words: a list in a text has quotes of its own") {
  CHECK(words_of("A=\"--layout 'Et*24|t*24L' --path 'a b' --c d\"") ==
        "<--layout> <Et*24|t*24L> <--path> <a b> <--c> <d> ;");
  CHECK(words_of("A=\"--name it's --b 2\"") == "<--name> <it's> <--b> <2> ;");
}
