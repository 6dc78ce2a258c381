package control_test

import (
	"strings"
	"testing"
)

// upstreamsHealthChecks are those that upstream's case "health handlers should contain necessary checks" asks for.
var upstreamsHealthChecks = []string{
	"ping", "log", "etcd", "poststarthook/start-apiserver-admission-initializer", "poststarthook/generic-apiserver-start-informers",
	"poststarthook/start-apiextensions-informers", "poststarthook/start-apiextensions-controllers", "poststarthook/crd-informer-synced",
	"poststarthook/bootstrap-controller", "poststarthook/start-system-namespaces-controller", "poststarthook/start-service-ip-repair-controllers",
	"poststarthook/scheduling/bootstrap-system-priority-classes", "poststarthook/start-cluster-authentication-info-controller",
	"poststarthook/start-kube-aggregator-informers", "poststarthook/apiservice-registration-controller",
	"poststarthook/apiservice-status-local-available-controller", "poststarthook/apiservice-status-remote-available-controller",
	"poststarthook/kube-apiserver-autoregistration", "autoregister-completion", "poststarthook/apiservice-openapi-controller",
	"poststarthook/storage-readiness",
}

func TestHealthChecksHaveUpstreamsNames(t *testing.T) {
	ctx, client := testContext(t), clientset(t, shared.admin()).Discovery().RESTClient()
	get := func(path string) string {
		t.Helper()
		body, err := client.Get().RequestURI(path).Do(ctx).Raw()
		if err != nil {
			t.Fatalf("%s: %v\n%s", path, err, body)
		}
		return string(body)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		lines := strings.Split(get(path+"?verbose=1"), "\n")
		seen := map[string]int{}
		for _, l := range lines {
			seen[l]++
		}
		names := upstreamsHealthChecks
		if path == "/readyz" {
			names = append([]string{"informer-sync"}, names...)
		}
		for _, name := range names {
			if seen["[+]"+name+" ok"] != 1 {
				t.Errorf("%s shows %s %d times", path, name, seen["[+]"+name+" ok"])
			}
			if got := get(path + "/" + name); got != "ok" {
				t.Errorf("%s/%s: %q", path, name, got)
			}
		}
		if got := get(path + "?verbose&exclude=etcd"); !strings.Contains(got, "[+]etcd excluded: ok") {
			t.Errorf("%s without etcd: %s", path, got)
		}
		if got := get(path); got != "ok" {
			t.Errorf("%s: %q", path, got)
		}
	}
}
