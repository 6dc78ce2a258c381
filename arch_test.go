package balsa

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/balsahq/balsa/"

// mayImport is the import direction: the top folders that each top folder may
// use besides itself.
var mayImport = map[string][]string{
	"cmd":       {"control", "leader", "node", "overlay", "raftstore", "fault"},
	"control":   {"raftstore", "fault"},
	"leader":    {"fault"},
	"node":      {"overlay", "fault"},
	"overlay":   {"fault"},
	"raftstore": {"fault"},
	"fault":     {}, // imports nothing of ours: panics are contained on every level
	"e2e":       {}, // drives the built binary from outside
}

// notOurs are parts of upstream that Balsa writes itself, with the reason.
var notOurs = map[string]string{
	"k8s.io/kubernetes/cmd":              "programs of upstream",
	"k8s.io/kubernetes/pkg/controller":   "controllers are ours",
	"k8s.io/kubernetes/pkg/controlplane": "the wiring of the API server is ours",
	"k8s.io/kubernetes/pkg/scheduler":    "the scheduler is ours",
	"k8s.io/kubernetes/pkg/kubelet":      "the node agent is ours",
	"k8s.io/kubernetes/pkg/proxy":        "service routing is ours",
}

// exempt are direct imports that a rule would refuse and an interface of an
// allowed library demands: importer top folder, imported package.
var exempt = map[[2]string]string{
	{"control", "k8s.io/kubernetes/pkg/kubelet/client"}: "the pod and node strategies take its ConnectionInfoGetter",
}

// pure are folders that may not know chance or the outside: every server must reach the same state from the same log.
// raftstore/mvcc's own test holds it to a list of what it may import, and to no clock.
var pure = map[string][]string{
	"raftstore/mvcc": {"math/rand", "math/rand/v2", "os", "net", "crypto/rand", "github.com/hashicorp/raft"},
}

// uncontained are launches of goroutines and event handlers whose panics end the process, by folder or file, with the
// reason. Everything else goes through package fault.
var uncontained = map[string]string{
	"raftstore":                  "the state: what follows from half a change is worse than a restart",
	"raftstore/consensus":        "Raft and the proposals, for the same reason",
	"raftstore/raftlog":          "Raft's log",
	"raftstore/snapshot":         "Raft's snapshots",
	"raftstore/wal":              "the log's files",
	"raftstore/peer/pipeline.go": "carries Raft's log",
	"cmd/balsa/containerd.go":    "the container runtime's own process",
	"control/auth/listers":       "declares handlers, calls none",
}

// forTests are folders of tests' own helpers and of programs beside the product.
var forTests = []string{"e2e", "raftstore/raftstoretest", "raftstore/simnet", "raftstore/member/membertest", "control/badapi", "control/corpus", "control/controltest",
	"control/aggregation/aggregatedtest", "leader/workqueue/workqueuetest", "node/nodetest", "node/realtest", "node/runtime/tools", "overlay/alone",
	"overlay/nettest", "overlay/policy/policytest", "testdata"}

// maxFiles is how many Go files a folder may have, tests not counted: more is more than one idea.
const maxFiles = 35

// flagless are folders whose packages are told everything in a configuration: only cmd/balsa knows a command line.
var flagless = map[string][]string{
	"cmd/balsa/daemon": {"github.com/spf13/cobra", "github.com/spf13/pflag", "flag"},
}

type goFile struct {
	path    string   // relative to the root, with slashes
	bare    []string // launches that package fault does not know of, as "line 7: go"
	clock   []string // uses of a clock or a timer, as "line 7: time.Now"
	pkg     string
	imports []string
	logKeys []string // keys of log lines that are not of the one style, as "line 7: key"
	hasDoc  bool
	test    bool
}

func readTree(root string) ([]goFile, error) {
	var out []goFile
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if skip := rel == "node/runtime/tools" || d.Name() == "testdata" && rel != "." || d.Name() == ".git"; skip {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		f := goFile{path: rel, test: strings.HasSuffix(rel, "_test.go")}
		mode, set := parser.ImportsOnly|parser.ParseComments, token.NewFileSet()
		if product := !f.test && !isForTests(rel); product {
			mode = parser.ParseComments
		}
		file, err := parser.ParseFile(set, p, nil, mode)
		if err != nil {
			return err
		}
		f.pkg, f.hasDoc, f.bare, f.clock = file.Name.Name, file.Doc != nil, bareLaunches(set, file), clockUses(set, file)
		f.logKeys = badLogKeys(set, file)
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, name)
		}
		out = append(out, f)
		return nil
	})
	return out, err
}

func top(importPath string) string {
	first, _, _ := strings.Cut(importPath, "/")
	return first
}

func importFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		from := top(f.path)
		allowed, known := mayImport[from]
		if !known {
			continue
		}
		for _, imp := range f.imports {
			if ours, ok := strings.CutPrefix(imp, module); ok {
				if to := top(ours); to != from && !slices.Contains(allowed, to) {
					faults = append(faults, fmt.Sprintf("%s imports %s: %s may use %v", f.path, imp, from, allowed))
				}
			}
			for prefix, reason := range notOurs {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && exempt[[2]string{from, imp}] == "" {
					faults = append(faults, fmt.Sprintf("%s imports %s: %s", f.path, imp, reason))
				}
			}
		}
	}
	return faults
}

func purityFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		for _, forbidden := range pure[path.Dir(f.path)] {
			if !f.test && slices.Contains(f.imports, forbidden) {
				faults = append(faults, fmt.Sprintf("%s imports %s: applying the log must give the same bytes everywhere", f.path, forbidden))
			}
		}
	}
	return faults
}

// docFaults wants exactly one package comment a package, in doc.go or main.go
// where there is one.
func docFaults(files []goFile) []string {
	docs, seen := map[string]int{}, map[string]bool{}
	for _, f := range files {
		if f.test {
			continue
		}
		seen[path.Dir(f.path)] = true
		if f.hasDoc {
			docs[path.Dir(f.path)]++
		}
	}
	var faults []string
	for dir := range seen {
		if docs[dir] != 1 {
			faults = append(faults, fmt.Sprintf("%s has %d package comments, want one", dir, docs[dir]))
		}
	}
	return faults
}

// bareLaunches lists go statements, calls of a method Go and event handlers that do not name package fault: a panic in
// one of them would end the process.
func bareLaunches(set *token.FileSet, file *ast.File) (bare []string) {
	note := func(n ast.Node, what string) {
		if !names(n, "fault", "eventhandler") {
			bare = append(bare, fmt.Sprintf("line %d: %s", set.Position(n.Pos()).Line, what))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			note(n, "go")
		case *ast.CallExpr:
			if method, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Go", "AddEventHandler"}, method.Sel.Name) {
				note(n, method.Sel.Name)
			}
		}
		return true
	})
	return bare
}

// names tells whether something in n is selected from one of the packages.
func names(n ast.Node, packages ...string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			id, ok := s.X.(*ast.Ident)
			found = found || ok && slices.Contains(packages, id.Name)
		}
		return !found
	})
	return found
}

func panicFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		if uncontained[f.path] != "" || uncontained[path.Dir(f.path)] != "" || top(f.path) == "fault" {
			continue
		}
		for _, launch := range f.bare {
			faults = append(faults, fmt.Sprintf("%s, %s: a panic there would end the process; use package fault, or say in uncontained why it may", f.path, launch))
		}
	}
	return faults
}

// isForTests tells whether the folder of a file is one of tests' own helpers or of a program beside the product.
func isForTests(file string) bool {
	return slices.ContainsFunc(forTests, func(dir string) bool { return strings.HasPrefix(file, dir+"/") })
}

func flagFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		for dir, forbidden := range flagless {
			for _, imp := range f.imports {
				if !f.test && strings.HasPrefix(f.path, dir+"/") && slices.Contains(forbidden, imp) {
					faults = append(faults, fmt.Sprintf("%s imports %s: %s gets a configuration, cmd/balsa fills it from flags", f.path, imp, dir))
				}
			}
		}
	}
	return faults
}

var standardTests = []string{"testing", "testing/synctest", "net/http/httptest"}

// testSupportFaults finds product code that imports a package for tests: one of this module whose name ends in test, or
// the standard library's.
func testSupportFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		if f.test || isForTests(f.path) {
			continue
		}
		for _, imp := range f.imports {
			if strings.HasPrefix(imp, module) && strings.HasSuffix(imp, "test") || slices.Contains(standardTests, imp) {
				faults = append(faults, fmt.Sprintf("%s imports %s, which is for tests: move what the product needs out of it", f.path, imp))
			}
		}
	}
	return faults
}

func folderFaults(files []goFile) []string {
	count := map[string]int{}
	for _, f := range files {
		if !f.test {
			count[path.Dir(f.path)]++
		}
	}
	var faults []string
	for dir, n := range count {
		if n > maxFiles {
			faults = append(faults, fmt.Sprintf("%s has %d Go files, at most %d: move those of one idea to a package below it", dir, n, maxFiles))
		}
	}
	return faults
}

var rules = map[string]func([]goFile) []string{
	"import direction": importFaults,
	"purity":           purityFaults,
	"package comments": docFaults,
	"contained panics": panicFaults,
	"log keys":         logKeyFaults,
	"pure decisions":   decisionFaults,
	"no flags":         flagFaults,
	"test support":     testSupportFaults,
	"folder size":      folderFaults,
}

func TestHouseRules(t *testing.T) {
	files, err := readTree(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("read only %d files: is this the root of the repository?", len(files))
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, fault := range rule(files) {
				t.Error(fault)
			}
		})
	}
}

// TestHouseRulesSeeViolations holds each rule against a tree with planted
// faults, so that a rule that looks away is found.
func TestHouseRulesSeeViolations(t *testing.T) {
	files, err := readTree("testdata/planted")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxFiles + 1 {
		files = append(files, goFile{path: fmt.Sprintf("control/crowd/%d.go", i), hasDoc: i == 0})
	}
	want := map[string]int{"import direction": 3, "purity": 1, "package comments": 1, "contained panics": 3, "log keys": 4, "pure decisions": 4, "no flags": 1, "test support": 1, "folder size": 1}
	for name, rule := range rules {
		if got := rule(files); len(got) != want[name] {
			t.Errorf("%s: %d faults found in the planted tree, want %d: %q", name, len(got), want[name], got)
		}
	}
}
