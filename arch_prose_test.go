package balsa

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// riddle matches words that leave a reader to guess which machine, process or request a comment is about, and
// sentences whose subject is a clause.
var riddle = regexp.MustCompile(`(?i:\b(somebody|nobody|everybody|the other's)\b)|(?:^|[.:;!?] )(?:Who|What) `)

// proseFaults lists the comments of the tree's product files that hold a riddle, by folder, each as "file:line: words".
// Generated files and modules of their own are not read.
func proseFaults(root string) (map[string][]string, error) {
	faults := map[string][]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == "node/runtime/tools" || rel == "e2e/operator" || rel != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || strings.HasSuffix(rel, ".pb.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			text := strings.Join(strings.Fields(group.Text()), " ")
			for _, found := range riddle.FindAllString(text, -1) {
				faults[path.Dir(rel)] = append(faults[path.Dir(rel)], fmt.Sprintf("%s:%d: %q", rel, set.Position(group.Pos()).Line, found))
			}
		}
		return nil
	})
	return faults, err
}

func TestCommentsNameTheirSubject(t *testing.T) {
	faults, err := proseFaults(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range faults {
		t.Errorf("name the leader, server, agent, client, watcher or pod that these comments are about:\n%s", strings.Join(found, "\n"))
	}
}

func TestCommentsNameTheirSubjectSeesViolations(t *testing.T) {
	faults, err := proseFaults("testdata/prose")
	if err != nil {
		t.Fatal(err)
	}
	if got := faults["."]; len(got) != 6 {
		t.Errorf("%d faults found in the planted file, want 6: %q", len(got), got)
	}
}
