package storage

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestConformanceIsComplete reads the source of upstream's suite: every
// function of it must be run, and nothing else be listed.
func TestConformanceIsComplete(t *testing.T) {
	pkg, err := build.Import("k8s.io/apiserver/pkg/storage/testing", ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	upstream := map[string]bool{}
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
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
		t.Fatalf("found only %d functions of the suite in %s", len(upstream), pkg.Dir)
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
