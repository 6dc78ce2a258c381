package balsa

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

// decisionFolders hold decisions as functions of values, as every file named reconcile.go does: no client, no clock, no
// I/O, no goroutine. Their tests need nothing but values.
var decisionFolders = []string{"node/podloop", "node/topology"}

// decisionImports are what a decision may import: types, and functions of them. "/..." allows what is below a path.
var decisionImports = []string{
	"github.com/container-storage-interface/spec/lib/go/csi", // messages; the services beside them need a connection
	"k8s.io/component-helpers/resource",                      // sums of what pods ask for
	"k8s.io/component-helpers/storage/volume",
	"k8s.io/dynamic-resource-allocation/resourceclaim", // which claims a pod has, and what tolerates a taint
	"cmp", "encoding/...", "errors", "fmt", "hash/...", "maps", "math", "math/bits", "net/netip", "reflect", "slices", "sort", "strconv", "strings",
	"time",                                                                           // for durations and instants; see clockUses
	"crypto/ecdsa", "crypto/ed25519", "crypto/elliptic", "crypto/rsa", "crypto/x509", // to read a request for a certificate
	"k8s.io/api/...", "k8s.io/apimachinery/pkg/api/...", "k8s.io/apimachinery/pkg/apis/...", "k8s.io/apimachinery/pkg/labels",
	"k8s.io/apimachinery/pkg/runtime/schema", "k8s.io/apimachinery/pkg/types", "k8s.io/apimachinery/pkg/util/intstr", "k8s.io/apimachinery/pkg/util/sets",
	"k8s.io/apimachinery/pkg/util/strategicpatch",
	"k8s.io/kubernetes/pkg/api/...", "k8s.io/kubernetes/pkg/apis/...",
	"k8s.io/apiserver/pkg/quota/v1",                     // arithmetic of resource lists
	"k8s.io/endpointslice", "k8s.io/endpointslice/util", // which port and which pod an endpoint is
	"github.com/robfig/cron/v3", // schedules; its runner is not used
	module + "leader/pods", module + "leader/job",
}

// clockFuncs read the time or wait for it.
var clockFuncs = map[string][]string{
	"time":   {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	"metav1": {"Now", "NowMicro"},
}

// clockUses lists what in a file reads the time or waits for it.
func clockUses(set *token.FileSet, file *ast.File) (uses []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && slices.Contains(clockFuncs[id.Name], s.Sel.Name) {
				uses = append(uses, fmt.Sprintf("line %d: %s.%s", set.Position(n.Pos()).Line, id.Name, s.Sel.Name))
			}
		}
		return true
	})
	return uses
}

func decisionMayImport(name string) bool {
	return slices.ContainsFunc(decisionImports, func(allowed string) bool {
		below, ok := strings.CutSuffix(allowed, "/...")
		return name == allowed || ok && (name == below || strings.HasPrefix(name, below+"/"))
	})
}

// decisionFaults holds decisions to values: a list of imports, no clock, no goroutine.
func decisionFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		if f.test || path.Base(f.path) != "reconcile.go" && !slices.Contains(decisionFolders, path.Dir(f.path)) {
			continue
		}
		for _, name := range f.imports {
			if !decisionMayImport(name) {
				faults = append(faults, fmt.Sprintf("%s imports %s: a decision is a function of values; put the effect into the caller, or add a pure import to decisionImports", f.path, name))
			}
		}
		for _, use := range f.clock {
			faults = append(faults, fmt.Sprintf("%s, %s: a decision gets the time as a value", f.path, use))
		}
		for _, launch := range f.bare {
			faults = append(faults, fmt.Sprintf("%s, %s: a decision starts nothing", f.path, launch))
		}
	}
	return faults
}
