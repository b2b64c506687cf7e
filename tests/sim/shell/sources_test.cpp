#include <algorithm>
#include <map>
#include <string>

#include "sim/shell/paths.hpp"
#include "sim/shell/words.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::shell;

namespace {

std::string path_of(const std::string& text) {
  PathNames names{"@/run.sh", "@/conf/a.sh", ".", nullptr};
  names.value = [](const std::string& name) {
    return name == "D" ? std::optional<std::string>("$(dirname \"$0\")/sub") : std::nullopt;
  };
  return resolved_path(text, names).value_or("not known");
}

using Texts = std::map<std::string, std::string>;  // of files by their paths

struct Read {
  std::string words;  // of the last command that is called
  std::vector<int> lines;
  std::vector<std::string> notes;
  std::string last_place;
};

Read read(const std::string& script, const Texts& texts) {
  Files files("dir/run.sh", [&](const std::string& path) -> std::optional<std::string> {
    const auto found = texts.find(path);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  });
  const auto commands = commands_in(script, files);
  Read made;
  const auto last = std::find_if(commands.rbegin(), commands.rend(),
                                 [](const Command& each) { return each.is_called; });
  REQUIRE(last != commands.rend());
  for (const Word& word : last->words) {
    made.words += (made.words.empty() ? "" : " ") + word.text;
    made.last_place = files.place(word.line);
  }
  made.notes = files.notes();
  return made;
}

}  // namespace

TEST_CASE("shell sources: paths that depend on the script alone") {
  CHECK(path_of("a.sh") == "a.sh");
  CHECK(path_of("./conf/../a.sh") == "a.sh");
  CHECK(path_of("/x/a.sh") == "/x/a.sh");
  for (const char* folder :
       {"$(dirname $0)", "$(dirname -- \"$0\")", "${0%/*}", "$(cd $(dirname \"$0\") && pwd)",
        "$( cd \"$( dirname \"$0\" )\" > /dev/null 2>&1 && pwd -P )",
        "$(dirname $(realpath \"$0\"))", "$(dirname \"$(readlink -f \"${0}\")\")"}) {
    CHECK(path_of(std::string(folder) + "/a.sh") == "@/a.sh");
    CHECK(path_of("\"" + std::string(folder) + "\"/../a.sh") == "@/../a.sh");
  }
  CHECK(path_of("$(dirname \"${BASH_SOURCE[0]}\")/b.sh") == "@/conf/b.sh");
  CHECK(path_of("${BASH_SOURCE%/*}/b.sh") == "@/conf/b.sh");
  CHECK(path_of("$(dirname $(dirname $0))/a.sh") == "@/../a.sh");
  CHECK(path_of("$(dirname $0)/../../a.sh") == "@/../../a.sh");
  CHECK(path_of("$PWD/a.sh") == "a.sh");
  CHECK(path_of("${PWD}/$(pwd)/a.sh") == "a.sh");
  CHECK(path_of("$D/a.sh") == "@/sub/a.sh");
  for (const char* other : {"$X/a.sh", "$(hostname).sh", "~/a.sh", "conf/*.sh", "<", "",
                            "$(git rev-parse --show-toplevel)/a.sh", "${D:-x}/a.sh"}) {
    CHECK(path_of(other) == "not known");
  }
}

TEST_CASE("shell sources: what a file sets and runs stands where it is sourced") {
  const Texts texts = {{"dir/a.sh", "# of a\nA=(--a $1)\nf() { run $N \"$@\"; }\n"},
                       {"dir/b/b.sh", "source $(dirname $BASH_SOURCE)/c.sh\n. ./a.sh 3\n"},
                       {"dir/b/c.sh", "N=7"},
                       {"dir/r.sh", "N=1\nif [ $N = 1 ]; then return; fi\nN=2"},
                       {"x.sh", "N=8\nlocal M=9"},
                       {"../y.sh", "N=6"}};
  CHECK(read("source a.sh 1 2\nrun ${A[@]}", texts).words == "run --a 1");
  CHECK(read(". b/b.sh\nf ${A[@]}", texts).words == "run 7 --a 3");
  CHECK(read("set -- 5\nsource a.sh\nrun ${A[@]} $1", texts).words == "run --a 5 5");
  CHECK(read("set -- 5\nsource a.sh 4\nrun ${A[@]} $1", texts).words == "run --a 4 5");
  CHECK(read("source r.sh\nrun $N", texts).words == "run 1");
  CHECK(read("source x.sh\nrun $N", texts).words == "run 8");
  CHECK(read("cd b\nsource c.sh\nrun $N", texts).words == "run 7");
  CHECK(read("cd $X\nsource a.sh\nrun ${A[@]}", texts).words == "run ${A[@]}");
  CHECK(read("cd $(dirname $0)/..\nsource dir/b/c.sh\nrun $N",
             {{"dir/../dir/b/c.sh", "N=7"}, {"dir/dir/b/c.sh", "N=8"}})
            .words == "run 7");
  CHECK(read("( cd b )\nsource c.sh\nrun $N", texts).words == "run $N");
  CHECK(read("false && source b/c.sh\nrun $N x", texts).words == "run $N x");
}

TEST_CASE("shell sources: lines tell of which file they are") {
  const Read found = read("source a.sh\nrun $N\n", {{"dir/a.sh", "\n\nN=1"}});
  CHECK(found.last_place == "line 3 of a.sh");
  CHECK(found.notes == std::vector<std::string>{"a.sh (line 1) is read too"});
  CHECK(read("source a.sh\nsource b.sh\nrun x $N\nrun y", {{"dir/a.sh", "N=1\n"}}).last_place ==
        "line 4");
  CHECK_THROWS_WITH(read("source a.sh", {{"dir/a.sh", "\n" + std::string(500, '(')}}),
                    ContainsSubstring("a.sh:2: more than 500 parts"));
}

TEST_CASE("shell sources: files that are not there are told of, but for those of programs") {
  const std::string script =
      "source no.sh\nsource $X/a.sh\nfor N in 1 2; do . no.sh; done\n"
      "source ~/.bashrc\n. venv/bin/activate\nsource /etc/profile.d/x.sh\nrun";
  CHECK(read(script, {}).notes ==
        std::vector<std::string>{"no.sh (line 1) is not found: what it has is not known",
                                 "$X/a.sh (line 2) is not known: what it has is not read",
                                 "no.sh (line 3) is not found: what it has is not known"});
  CHECK(read("for f in conf/*.sh; do source $f; done\nsource <(echo N=2)\nrun", {}).notes ==
        std::vector<std::string>{"$f (line 1) is not known: what it has is not read",
                                 "<(...) (line 2) is not known: what it has is not read"});
  const Read own =
      read("source ./profile\nsource conf/activate\nsource /x/profile\nrun $N $M",
           {{"dir/profile", "N=1"}, {"dir/conf/activate", "M=2"}, {"/x/profile", "N=3"}});
  CHECK(own.words == "run 1 2");
  CHECK(own.notes == std::vector<std::string>{"profile (line 1) is read too",
                                              "conf/activate (line 2) is read too"});
  CHECK(read("run $(cat no.txt)", {}).notes.empty());  // it is told of where it is used
  const Read found = read("N=1\nsource a.sh\nrun $N\n",
                          {{"dir/a.sh", "N=2\nsource b.sh\nrun 'x"}, {"dir/b.sh", "N=3"}});
  CHECK(found.words == "run 1");
  CHECK(found.notes ==
        std::vector<std::string>{"b.sh (line 2 of a.sh) is read too",
                                 "a.sh (line 2) cannot be read: what it has is not known"});
  CHECK(read("D=$(cd $(dirname $0) && pwd)\nsource $D/no.sh\n. $(dirname $0)\nrun", {}).notes ==
        std::vector<std::string>{"no.sh (line 2) is not found: what it has is not known",
                                 "@ (line 3) is not found: what it has is not known"});
}

TEST_CASE("shell sources: a hundred files are read") {
  std::string script;
  Texts texts;
  for (int file = 1; file <= 100; ++file) {
    const std::string name = std::to_string(file) + ".sh";
    script += "source " + name + "\n";
    texts["dir/" + name] = "N=" + std::to_string(file);
  }
  const Read made = read(script + "run $N", texts);
  CHECK(made.words == "run 99");
  CHECK(made.notes.back() == "100.sh (line 100) is not read: of a script's files 100 are at most");
}

TEST_CASE("shell sources: files that source themselves are read to a depth") {
  CHECK(read("source a.sh\nrun $N", {{"dir/a.sh", "N=1$N\nsource a.sh\n"}}).words.substr(0, 6) ==
        "run 11");
}
