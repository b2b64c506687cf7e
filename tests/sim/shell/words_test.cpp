#include "sim/shell/words.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::shell;

namespace {

// The words of its commands with a space between two, a " ; " behind each command.
std::string words_of(const std::string& script, bool with_lists = false) {
  std::string text;
  for (const Command& command : commands_in(script, "run.sh")) {
    if (command.words.empty()) continue;
    if (command.kind == Command::Kind::list && !with_lists) continue;
    if (command.kind == Command::Kind::list) text += command.variable + "=";
    for (const Word& word : command.words) text += "<" + word.text + "> ";
    text += "; ";
  }
  return text.empty() ? "" : text.substr(0, text.size() - 1);
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
  for (const char* unknown : {"${N#1}", "${N##*1}", "${N%5}", "${N/#1/2}", "${N^^}", "${N/[1]/2}",
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

TEST_CASE("shell words: a backslash in double quotes stays before other letters") {
  CHECK(words_of(R"(run "a\nb" "\d+\." "\"q\"" "c\\d")") ==
        R"(<run> <a\nb> <\d+\.> <"q"> <c\d> ;)");
  CHECK(words_of(R"(run "\$N" "\`x\`" a\nb 'a\nb')") == R"(<run> <$N> <`x`> <anb> <a\nb> ;)");
  CHECK(words_of("run \"a\\\nb\"") == "<run> <a b> ;");
}

TEST_CASE("shell words: a list in a text has quotes of its own") {
  CHECK(words_of("A=\"--layout 'Et*24|t*24L' --path 'a b' --c d\"\nrun $A") ==
        "<run> <--layout> <Et*24|t*24L> <--path> <a b> <--c> <d> ;");
  CHECK(words_of("A=\"--name it's --b 2\"\nrun $A") == "<run> <--name> <it's> <--b> <2> ;");
}

TEST_CASE("shell words: an array's words stand where it is used") {
  const std::string set = "A=(--a 1 '--b c'\n  --d  # of d\n)\n";
  CHECK(words_of(set).empty());
  CHECK(words_of(set + "run \"${A[@]}\" x") == "<run> <--a> <1> <--b c> <--d> <x> ;");
  CHECK(words_of(set + "run ${A[@]} x") == "<run> <--a> <1> <--b> <c> <--d> <x> ;");
  CHECK(words_of("A=(a b)\nrun x\"${A[@]}\"y \"${A[*]}\" ${A[*]}") ==
        "<run> <xa> <by> <a b> <a> <b> ;");
  CHECK(words_of("A=(--a)\nA+=(--b 2)\nB=(\"${A[@]}\" --c)\nrun ${B[@]}") ==
        "<run> <--a> <--b> <2> <--c> ;");
  CHECK(words_of("A=(--a)\nrun ${A[@]}\nA=(--b)\nrun ${A[@]}") == "<run> <--a> ; <run> <--b> ;");
  CHECK(words_of("E=()\nrun \"${E[@]}\" ${E[@]} ${U[@]+\"${U[@]}\"} x") == "<run> <x> ;");
  CHECK(words_of("declare -a E\nunset F\nrun \"${E[@]}\" \"${F[@]}\" x") ==
        "<declare> <-a> <E> ; <unset> <F> ; <run> <x> ;");
  CHECK(words_of("run ${U[@]} \"${U[*]}\"") == "<run> <${U[@]}> <${U[*]}> ;");
  CHECK(words_of("A=(--a '1 2')\nrun \"${A[@]+${A[@]}}\" ${A[0]} ${A[9]}") ==
        "<run> <--a 1 2> <--a> <${A[9]}> ;");
  CHECK(words_of("declare -A A=([x]=1 [y]='--b 2')\nA[z]=3\nK=z\nrun ${A[y]} ${A[$K]} ${A[@]}") ==
        "<declare> <-A> ; <run> <--b> <2> <3> <1> <--b> <2> <3> ;");
  CHECK(words_of("A=(1 2 3)\nrun ${A[@]:1} ${A[@]:0:2} $A") ==
        "<run> <2> <3> <1> <2> <1> <2> <3> ;");
}

TEST_CASE("shell words: a list in a text stands where it is used") {
  const std::string set = "A=\"--a 1 \\\n  --b 2\"\nB='--c\n--d'\n";
  CHECK(words_of(set).empty());
  CHECK(words_of(set + "run $B $A") == "<run> <--c> <--d> <--a> <1> <--b> <2> ;");
  CHECK(words_of(set + "A=\"$A --e\"\nA+=' --f'\nrun \"$A\"") ==
        "<run> <--a> <1> <--b> <2> <--e> <--f> ;");
  CHECK(words_of(set + "run --x=\"$A\"") == "<run> <--x=--a 1    --b 2> ;");
  CHECK(words_of("A=$(cat <<EOF\n--a $N\n--b 'c d'\nEOF\n)\nrun $A") ==
        "<run> <--a> <$N> <--b> <c d> ;");
  CHECK(words_of("A=\"--addr `first -n` --b\"\nrun $A `more --c` \"`more --d`\" `# none`") ==
        "<run> <--addr> <`first -n`> <--b> <`more --c`> <`more --d`> ;");
  CHECK(words_of("run $(more --c) \"$(more --d)\"") == "<run> <$(more --c)> <$(more --d)> ;");
  CHECK(words_of("A=\"--addr $(first -n | head) --b\"\nrun $A") ==
        "<run> <--addr> <$(first -n | head)> <--b> ;");
}

TEST_CASE("shell words: words know the line that they are written on") {
  const auto commands = commands_in("A=(--a\n  1\n)\nB=\"--b \\\n 2\"\nrun $B ${A[@]}\n", "x");
  REQUIRE(commands.size() == 3);
  std::vector<int> lines;
  for (const Word& word : commands[2].words) lines.push_back(word.line);
  CHECK(lines == std::vector<int>{6, 4, 5, 1, 2});
  CHECK(commands[0].variable == "A");
}

TEST_CASE("shell words: of branches whose condition is not known all are read") {
  CHECK(words_of("A=(--a)\nif x; then A=(--b); else A=(--c); fi\nA+=(--d)\nrun ${A[@]}") ==
        "<if> <x> ; <then> ; <else> ; <fi> ; <run> <--a> <--b> <--c> <--d> ;");
  CHECK(words_of("case $X in\n a) A='--a';;\n b) A='--b';;\nesac\nrun $A") ==
        "<case> <$X> <in> ; <esac> ; <run> <--a> <--b> ;");
  CHECK(words_of("A=--a\nx && A=--b\nx ||\n A=\"$A --c\"\nA2=\nrun $A") ==
        "<x> ; <x> ; <run> <--a> <--b> <--c> ;");
  CHECK(words_of("N=1\nif x; then N=2; fi\nrun $N") == "<if> <x> ; <then> ; <fi> ; <run> <2> ;");
}

TEST_CASE("shell words: of branches that are known the one that runs is read") {
  CHECK(words_of("X=2\nif [ $X = 1 ]; then a; elif [ $X = 2 ]; then b; else c; fi") ==
        "<if> <[> <2> <=> <1> <]> ; <elif> <[> <2> <=> <2> <]> ; <then> <b> ; <fi> ;");
  CHECK(words_of("case x in\n y) a;;\n x|z) b;;\n *) c\nesac\nd") ==
        "<case> <x> <in> ; <b> ; <esac> ; <d> ;");
  CHECK(words_of("false && a\ntrue || b\nfalse || c && d\n! true || e") ==
        "<false> ; <true> ; <false> ; <c> ; <d> ; <!> <true> ; <e> ;");
  CHECK(words_of("while false; do a; done\nuntil true; do b; done\nfor x in; do c; done\nd") ==
        "<while> <false> ; <done> ; <until> <true> ; <done> ; <for> <x> <in> ; <done> ; <d> ;");
  CHECK(words_of("f() { [ $1 = 1 ]; }\nif f 2; then a; fi\nf 1 && b") ==
        "<if> <f> <2> ; <[> <2> <=> <1> <]> ; <fi> ; <f> <1> ; <[> <1> <=> <1> <]> ; <b> ;");
}

TEST_CASE("shell words: a loop over words that are known is read for each") {
  CHECK(words_of("for N in 1 2; do run $N; done\nrun $N") ==
        "<for> <N> <in> <1> <2> ; <do> <run> <1> ; <done> ; <run> <2> ; <done> ; <run> <2> ;");
  CHECK(words_of("for ((N = 1; N < 3; N++)); do run $N; done") ==
        "<for> ; <do> <run> <1> ; <done> ; <run> <2> ; <done> ;");
  CHECK(words_of("for N in 1 2; do x && break; run; done\nrun $N") ==
        "<for> <N> <in> <1> <2> ; <do> <x> ; <break> ; <run> ; <done> ; <x> ; <break> ; <run> ; "
        "<done> ; <run> <2> ;");
  CHECK(words_of("for N in 1 $X; do run $N; done") ==
        "<for> <N> <in> <1> <$X> ; <do> <run> <$N> ; <done> ;");
  const std::string nested = "for A in {1..40}; do for B in {1..40}; do run $B; done; done";
  CHECK(words_of(nested).find("<run> <$B>") != std::string::npos);
  const std::string body(5000, 'x');
  CHECK(words_of("for A in {1..900}; do B=$A; " + body + "; done\nrun $A $B")
            .find("<run> <$A> <$A>") != std::string::npos);
}

TEST_CASE("shell words: a loop is read again while its condition is known") {
  CHECK(
      words_of("N=1\nwhile [ $N -lt 3 ]; do run; N=$((N + 1)); done\nrun $N") ==
      "<while> <[> <1> <-lt> <3> <]> ; <do> <run> ; <done> ; <[> <2> <-lt> <3> <]> ; <do> <run> ; "
      "<done> ; <[> <3> <-lt> <3> <]> ; <done> ; <run> <3> ;");
  CHECK(words_of("f() { while [ $# -gt 0 ]; do A+=(\"--$1\"); shift; done; run ${A[@]}; }\nf a b")
            .find("<run> <--a> <--b>") != std::string::npos);
  CHECK(words_of("N=1\nuntil (( N >= 3 )); do (( N++ )); done\nrun $N").find("<run> <3>") !=
        std::string::npos);
  CHECK(words_of("N=1\nwhile [ $N -lt 9 ]; do N=$((N + 1)); x && break; done\nrun $N")
            .find("<run> <$N>") != std::string::npos);
  CHECK(words_of("N=1\nwhile [ $N -gt 0 ]; do N=$((N + 1)); done\nrun $N").find("<run> <$N>") !=
        std::string::npos);
  CHECK(words_of("A=()\nN=1\nwhile x; do A+=(--a $N); done\nrun ${A[@]}")
            .find("<run> <--a> <1> <${A[@]}>") != std::string::npos);
}

TEST_CASE("shell words: loops in loops end") {
  std::string counting;
  std::string testing;
  std::string breaking;
  for (int depth = 0; depth < 200; ++depth) {
    counting += "for ((A = 0; A < 9; A++)); do ";
    testing += "while [ 1 ]; do ";
    breaking += "while [ 1 ]; do x && break; while x; do :; done; ";
  }
  std::string ends;
  for (int depth = 0; depth < 200; ++depth) ends += "done; ";
  for (const std::string& begin : {counting, testing, breaking}) {
    std::string text = begin;
    text.append("run; ").append(ends);
    CHECK(commands_in(text, "x").size() < 1'000'000);
  }
  CHECK(words_of("while :; do N=$N; done; while true; do x; done; run") ==
        "<while> <:> ; <do> ; <done> ; <while> <true> ; <do> <x> ; <done> ; <run> ;");
}

TEST_CASE("shell words: outputs of commands that are known") {
  CHECK(words_of("run $(echo a  b) \"$(echo a; echo b)\" $(true)") == "<run> <a> <b> <a\nb> ;");
  CHECK(words_of("f() { echo $1; }\nrun $(f x)y$(f z)").find("<run> <xyz>") != std::string::npos);
  CHECK(words_of("run $(printf '%s-%d\\n' a 1 b 2)") == "<run> <a-1> <b-2> ;");
  CHECK(words_of("run $(seq 3) $(seq 5 6) $(expr 2 + 3) $(echo -n x) $(echo a >&2)") ==
        "<run> <1> <2> <3> <5> <6> <5> <x> ;");
  CHECK(words_of("N=1\nrun $(N=2; echo $N) $N") == "<run> <2> <1> ;");
  for (const char* unknown :
       {"$(more)", "$(echo a | more)", "$(echo $X)", "$(x && echo a)", "$(echo a > b)",
        "$(echo -e 'a\\n')", "$(printf %x 3)", "$(echo a; more)", "$(echo 'a)", "$(seq x)",
        "$(seq 1 1 5000)", "$(cat a b)", "$(cat no.txt)"}) {
    CHECK(words_of("run " + std::string(unknown)) == "<run> <" + std::string(unknown) + "> ;");
  }
}

TEST_CASE("shell words: what a pipe sets it sets for itself") {
  CHECK(words_of("N=1\nx | for N in 2 3; do y; done\nrun $N").find("<run> <1>") !=
        std::string::npos);
  CHECK(words_of("N=1\nfor N in 2 3; do y; done | x\nrun $N").find("<run> <1>") !=
        std::string::npos);
  CHECK(words_of("N=1\nf() { N=2; }\nf | x\nx | { N=3; }\n{ N=4; } &\nrun $N").find("<run> <1>") !=
        std::string::npos);
  CHECK(words_of("N=1\n{ N=2; exit; a; } | x\nrun $N") == "<{> ; <exit> ; <x> ; <run> <1> ;");
  CHECK(words_of("exit\n{ N=2; } | x\nrun") == "<exit> ;");
  CHECK(words_of("N=1\n{ N=2; } && x | y\nrun $N").find("<run> <2>") != std::string::npos);
}

TEST_CASE("shell words: nothing runs behind the end of a script") {
  CHECK(words_of("a\nexit 0\nb") == "<a> ; <exit> <0> ;");
  CHECK(words_of("x && exit\nb") == "<x> ; <exit> ; <b> ;");
  CHECK(words_of("( exit ; a )\nb") == "<exit> ; <b> ;");
  CHECK(words_of("f() { return; a; }\nf\nb") == "<f> ; <return> ; <b> ;");
  CHECK(words_of("f() { exit; a; }\nf\nb") == "<f> ; <exit> ;");
  CHECK(words_of("exec > log\nexec a\nb") == "<exec> <>> <log> ; <exec> <a> ;");
  CHECK(words_of(": <<E\na\nE\n<<'E'\na\nE\nb") == "<:> ; <b> ;");
}

TEST_CASE("shell words: how long a variable has its value") {
  CHECK(words_of("N=1\nN=2 run $N\nrun $N") == "<run> <1> ; <run> <1> ;");
  CHECK(words_of("N=2 sh -c 'run $N --a 1'\nrun $N") ==
        "<sh> <-c> ; <run> <2> <--a> <1> ; <run> <$N> ;");
  CHECK(words_of("f() { run $N; }\nN=1\nN=2 f\nf") == "<f> ; <run> <2> ; <f> ; <run> <1> ;");
  CHECK(words_of("N=1\n( N=2; run $N )\nrun $N") == "<run> <2> ; <run> <1> ;");
  CHECK(words_of("N=1\nf() { local N=2; run $N; }\nf\nrun $N") ==
        "<f> ; <local> ; <run> <2> ; <run> <1> ;");
  CHECK(words_of("N=1\nunset N\nrun $N ${N-3}") == "<unset> <N> ; <run> <3> ;");
  CHECK(words_of("false && N=1\nrun $N x") == "<false> ; <run> <x> ;");
  CHECK(words_of("run a=1\nrun $a") == "<run> <a=1> ; <run> <$a> ;");
}

TEST_CASE("shell words: commands that set variables") {
  CHECK(words_of("N=1\neval N=2\nrun $N") == "<run> <2> ;");
  CHECK(words_of("N=1\nM=1\nread -r N <<< \"2\"\nprintf -v M 2\nrun $N $M") ==
        "<read> <-r> <N> <2> ; <printf> <-v> <M> <2> ; <run> <$N> <$M> ;");
  CHECK(words_of("while true; do N=1; break; N=2; done\nrun $N") ==
        "<while> <true> ; <do> ; <break> ; <done> ; <run> <1> ;");
  CHECK(words_of("for N in 1; do if true; then continue; fi; N=2; done\nrun $N") ==
        "<for> <N> <in> <1> ; <do> <if> <true> ; <then> <continue> ; <done> ; <run> <1> ;");
  CHECK(words_of("L='--a 1'\nx && L=\"--b 2 --load $C\"\nrun $L") ==
        "<x> ; <run> <--a> <1> <--b> <2> <--load> <$C> ;");
}

TEST_CASE("shell words: elements of an array are set and taken away") {
  CHECK(words_of("A=(a b c)\nA[1]=x\nA[3]=y\nrun ${A[@]}") == "<run> <a> <x> <c> <y> ;");
  CHECK(words_of("A=(a b)\nA[0]+=x\nA[-1]=y\nrun ${A[@]}") == "<run> <ax> <y> ;");
  CHECK(words_of("A=(a b c)\nunset 'A[1]'\nrun ${A[@]} ${#A[@]} ${#A}") ==
        "<unset> <A[1]> ; <run> <a> <c> <2> <1> ;");
}

TEST_CASE("shell words: arithmetic sets a variable or makes it unknown") {
  CHECK(words_of("N=3\n(( N *= 4, M = N + 1 ))\nrun $N $M") == "<((> ; <run> <12> <13> ;");
  CHECK(words_of("N=3\n(( N++ ))\nlet N-=2\nrun $N") == "<((> ; <let> <N-=2> ; <run> <2> ;");
  CHECK(words_of("N=3\n(( N <<= 2 ))\nrun $N") == "<((> ; <run> <$N> ;");
  CHECK(words_of("N=3\n(( M = (N = 2) ))\nrun $N $M") == "<((> ; <run> <$N> <$M> ;");
  CHECK(words_of("f() { run $(( $1 * 2 )) $#; }\nf 4") == "<f> <4> ; <run> <8> <1> ;");
}

TEST_CASE("shell words: a variable that a branch sets is in doubt") {
  const auto commands =
      commands_in("N=1\nM=1\nx && N=2\nL=\"a $N\"\nx && M=3\nM=4\nrun $L $M\n", "x");
  REQUIRE(commands.back().doubts.size() == 1);
  const Doubt& doubt = *commands.back().doubts.front();
  CHECK(doubt.name == "N");
  REQUIRE(doubt.values.size() == 2);
  CHECK(doubt.values[0].text == "1");
  CHECK(doubt.values[1].line == 3);
  CHECK(doubt.taken == "2");
  CHECK(doubt.condition == "x");
}

TEST_CASE("shell words: names of variables") {
  CHECK(words_of("A=(--a 1)\nN=A\nM='A[@]'\nrun ${!N} \"${!M}\" ${!U}") ==
        "<run> <--a> <1> <--a> <1> <${!U}> ;");
  CHECK(words_of("A=(--a 1)\nf() { local -n r=$1; run \"${r[@]}\"; }\nf A") ==
        "<f> <A> ; <local> <-n> ; <run> <--a> <1> ;");
}

TEST_CASE("shell words: functions are read where they are called") {
  const std::string set = "f() {\n  run \"$@\" $1 ${A[@]}\n}\nA=(--a)\n";
  CHECK(words_of(set + "f 'b c' d") == "<f> <b c> <d> ; <run> <b c> <d> <b> <c> <--a> ;");
  CHECK(words_of(set + "f b && f c") ==
        "<f> <b> ; <run> <b> <b> <--a> ; <f> <c> ; <run> <c> <c> <--a> ;");
  CHECK(words_of(set + "other") == "<other> ; <run> <$1> <--a> ;");
  CHECK(words_of("function f { A=(--b); }\nf\nrun ${A[@]}") == "<f> ; <run> <--b> ;");
  CHECK(words_of("f() { shift; run \"$@\"; }\nf a b\ng()\n{\n  run \"${@:2}\"\n}\ng a b") ==
        "<f> <a> <b> ; <shift> ; <run> <b> ; <g> <a> <b> ; <run> <b> ;");
  CHECK(words_of("set -- a b\nset -- \"$@\" c\nrun $*") ==
        "<set> <--> <a> <b> ; <set> <--> <a> <b> <c> ; <run> <a> <b> <c> ;");
  CHECK(words_of("f() { f; f a; run; }\nf") == "<f> ; <f> ; <f> <a> ; <run> ;");
  CHECK(words_of("f() {\n cat <<E\nit's\nE\n}\nrun 'a b'") ==
        "<f> ; <{> ; <cat> ; <its> ; <}> ; <run> <a b> ;");
}

TEST_CASE("shell words: texts that another shell reads") {
  const std::string set = "A=\"--layout 'Et|tL' --a 1\"\n";
  CHECK(words_of(set + "sh -c \"cd x; run $A | tee\" --z") ==
        "<sh> <-c> <--z> ; <cd> <x> ; <run> <--layout> <Et|tL> <--a> <1> ; <tee> ;");
  CHECK(words_of(set + "sh -c 'run $A --b 2'") == "<sh> <-c> ; <run> <$A> <--b> <2> ;");
  CHECK(words_of("export " + set + "sh -c 'run $A --b 2'") ==
        "<export> ; <sh> <-c> ; <run> <--layout> <Et|tL> <--a> <1> <--b> <2> ;");
  CHECK(words_of(set + "f 'run $A --b 2'") ==
        "<f> ; <run> <--layout> <Et|tL> <--a> <1> <--b> <2> ;");
  CHECK(words_of(set + "C=\"run $A\"\neval $C 2>&1 | tee\n$C") ==
        "<run> <--layout> <Et|tL> <--a> <1> <2>&1> ; <tee> ; <run> <--layout> <Et|tL> <--a> <1> ;");
  CHECK(words_of(set + "sh <<EOF\nrun $A\nEOF") == "<sh> ; <run> <--layout> <Et|tL> <--a> <1> ;");
  CHECK(words_of("A=(--a 1)\neval \"run ${A[@]} --b\"\nsbatch --wrap=\"run ${A[@]} --b 2\" --c") ==
        "<run> <--a> <1> <--b> ; <sbatch> <--c> ; <run> <--a> <1> <--b> <2> ;");
  const auto commands = commands_in("srun sh -c 'run --a'\nsrun sh <<E\nrun --b\nE\n", "x");
  REQUIRE(commands.size() == 4);
  CHECK(commands[1].outer == 0);
  CHECK(commands[2].outer == Command::no_command);
  CHECK(commands[3].outer == 2);
}

TEST_CASE("shell words: lists that are set are known") {
  CHECK(words_of("A=(--a 1)\nB='--b 2'\nC=3\nrun x", true) ==
        "A=<--a> <1> ; B=<--b> <2> ; <run> <x> ;");
  CHECK(words_of("cat > args <<EOF\n--a 1\n--b\nEOF", true) ==
        "<cat> <>> <args> ; =<--a> <1> ; =<--b> ;");
}

TEST_CASE("shell words: short options of what runs the ranks are spelled out") {
  CHECK(words_of("srun -N 2 -n16 -G 8 python x.py -n 4 -G 2") ==
        "<srun> <--nodes> <2> <--ntasks=16> <--gpus> <8> <python> <x.py> <-n> <4> <-G> <2> ;");
  CHECK(words_of("mpirun -np 64 -n 2 -npernode 8 -N 8 run") ==
        "<mpirun> <--np> <64> <--np> <2> <-npernode> <8> <-N> <8> <run> ;");
  CHECK(words_of("#SBATCH -G 8\n#SBATCH --gres=nvme:1,gpu:h100:4,x:1\nrun $SLURM_GPUS_ON_NODE") ==
        "<--gpus> <8> ; <--gres=nvme:1,gpu:h100:4,x:1> ; <run> <4> ;");
  CHECK(words_of("env A=1 /bin/srun -N 2 x.py -N 3") ==
        "<env> </bin/srun> <--nodes> <2> <x.py> <-N> <3> ;");
  CHECK(words_of("run -N 2") == "<run> <-N> <2> ;");
}

TEST_CASE("shell words: behind a Python script an assignment is an argument") {
  CHECK(words_of("A=1\nrun x.py a=$A b=2\nrun $a") == "<run> <x.py> <a=1> <b=2> ; <run> <$a> ;");
}
