package storage

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"strings"
	"testing"
)

// TestConformanceIsComplete reads the source of upstream's suite: every
// function of it must be run, and nothing else be listed.
func TestConformanceIsComplete(t *testing.T) {
	files, err := exec.Command("go", "list", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`, "k8s.io/apiserver/pkg/storage/testing").Output()
	if err != nil {
		t.Fatal(err)
	}
	upstream := map[string]bool{}
	for path := range strings.FieldsSeq(string(files)) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Run") && !strings.HasPrefix(f.Name.Name, "RunBenchmark") {
				upstream[f.Name.Name] = true
			}
		}
	}
	if len(upstream) < 50 {
		t.Fatalf("found only %d functions of the suite in %s", len(upstream), files)
	}
	for name := range upstream {
		if conformance[name] == nil {
			t.Errorf("%s is not run", name)
		}
	}
	for name := range conformance {
		if !upstream[name] {
			t.Errorf("%s is not part of the suite", name)
		}
	}
}
