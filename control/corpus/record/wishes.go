package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubefuzzer "k8s.io/kubernetes/pkg/api/testing"

	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
)

// wishes are objects of a kind with as much in them as upstream's own tests can put there, valid or not: the one of
// k8s.io/api's compatibility tests, which has every field, and some of the fuzzers of its round trips.
type wishes struct {
	whole map[string]any // nil when there is none
	fuzz  []map[string]any
}

// seeds of the fuzzers; the same seeds give the same objects.
const fuzzed = 4

func wishesFor(dir string, gvk schema.GroupVersionKind) (w wishes, err error) {
	group := gvk.Group
	if group == "" {
		group = "core"
	}
	text, err := os.ReadFile(filepath.Join(dir, group+"."+gvk.Version+"."+gvk.Kind+".json"))
	if err != nil {
		return w, nil // custom resources and the kinds of apiextensions and aggregation are not in k8s.io/api
	}
	if err := json.Unmarshal(text, &w.whole); err != nil {
		return w, err
	}
	for seed := range int64(fuzzed) {
		o, err := fuzz(gvk, seed)
		if err != nil {
			return w, fmt.Errorf("%s: %w", gvk, err)
		}
		w.fuzz = append(w.fuzz, o)
	}
	return w, nil
}

func fuzz(gvk schema.GroupVersionKind, seed int64) (map[string]any, error) {
	scheme, codecs := legacyscheme.Scheme, legacyscheme.Codecs
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, kubefuzzer.FuzzerFuncs)
	internal, err := scheme.New(schema.GroupVersionKind{Group: gvk.Group, Version: runtime.APIVersionInternal, Kind: gvk.Kind})
	if err != nil {
		if gvk.Group != "events.k8s.io" { // served from the core group's
			return nil, err
		}
		if internal, err = scheme.New(schema.GroupVersionKind{Version: runtime.APIVersionInternal, Kind: gvk.Kind}); err != nil {
			return nil, err
		}
	}
	//nolint:gosec // the same objects each time
	fuzzer.FuzzerFor(funcs, rand.NewSource(seed), codecs).Fill(internal)
	text, err := runtime.Encode(codecs.LegacyCodec(gvk.GroupVersion()), internal)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal(text, &out)
}

// testdata is the directory of the objects of k8s.io/api's compatibility tests.
func testdata() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	return filepath.Join(strings.TrimSpace(string(out)), "testdata", "HEAD"), err
}
