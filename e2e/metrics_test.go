package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// where are the paths that docs/metrics.md names, as kubectl asks for them; NODE stands for the node's name.
var where = map[string]string{
	"API `/metrics`":           "/metrics",
	"node `/metrics`":          "/api/v1/nodes/NODE/proxy/metrics",
	"node `/metrics/cadvisor`": "/api/v1/nodes/NODE/proxy/metrics/cadvisor",
	"node `/metrics/resource`": "/api/v1/nodes/NODE/proxy/metrics/resource",
	"node `/metrics/probes`":   "/api/v1/nodes/NODE/proxy/metrics/probes",
}

// checkMetrics compares docs/metrics.md, the alerts and the dashboard with what the cluster shows. It needs a pod that has run.
func checkMetrics(c *cluster, node string) {
	c.t.Helper()
	served, all := map[string]map[string]bool{}, map[string]bool{}
	for place, path := range where {
		served[place] = families(c.kubectl("get", "--raw", strings.ReplaceAll(path, "NODE", node)))
		for name := range served[place] {
			all[name] = true
		}
	}
	rows := table(c.t)
	if len(rows) < 120 {
		c.t.Fatalf("the table has %d rows", len(rows))
	}
	for _, r := range rows {
		switch place := served[r.where]; {
		case place != nil && !place[r.name] && !strings.HasPrefix(r.note, "after an event"):
			c.t.Errorf("%s is not at %s", r.name, r.where)
		case place == nil && !slices.Contains([]string{"none", "kube-state-metrics", "node-exporter"}, r.where):
			c.t.Errorf("%s: %q is no place", r.name, r.where)
		case r.where == "none" && all[r.name]:
			c.t.Errorf("%s is served, the table says that it is not", r.name)
		}
	}
	text := read(c.t, "../docs/metrics.md")
	for _, file := range []string{"rules.yml", "dashboard.json"} {
		for _, name := range ownMetric.FindAllString(expressions(c.t, "../docs/monitoring/"+file), -1) {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if name != "balsa_panics_total" && !all[name] || !strings.Contains(text, "`"+name+"`") {
				c.t.Errorf("%s names %s, which is not served or not in the documentation", file, name)
			}
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "balsa_") && !strings.Contains(text, "`"+name+"`") {
			c.t.Errorf("%s is not in the documentation", name)
		}
	}
}

var ownMetric = regexp.MustCompile(`\bbalsa_[a-z_]+`)

// expressions returns the queries of a file of alerts or of a dashboard, one a line.
func expressions(t *testing.T, file string) string {
	t.Helper()
	var content struct {
		Groups []struct {
			Rules []struct{ Alert, Expr, For string }
		}
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data := []byte(read(t, file))
	if err := yaml.Unmarshal(data, &content); err != nil { // JSON is YAML
		t.Fatalf("%s: %v", file, err)
	}
	if strings.HasSuffix(file, ".json") && !json.Valid(data) {
		t.Errorf("%s is no JSON", file)
	}
	var all []string
	for _, g := range content.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Expr == "" || r.For == "" {
				t.Errorf("%s: an alert lacks something: %+v", file, r)
			}
			all = append(all, r.Expr)
		}
	}
	for _, p := range content.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) < 10 {
		t.Errorf("%s has %d queries", file, len(all))
	}
	return strings.Join(all, "\n")
}

type metricRow struct{ name, where, note string }

// table returns the rows of docs/metrics.md that have three columns.
func table(t *testing.T) (rows []metricRow) {
	t.Helper()
	for line := range strings.Lines(read(t, "../docs/metrics.md")) {
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(f) == 3 && strings.Contains(f[0], "`") {
			rows = append(rows, metricRow{strings.Trim(f[0], " `"), strings.TrimSpace(f[1]), strings.TrimSpace(f[2])})
		}
	}
	return rows
}

// families are the names of a scrape's metrics that have a series.
func families(scrape string) map[string]bool {
	out, name, kind := map[string]bool{}, "", ""
	for line := range strings.Lines(scrape) {
		if f := strings.Fields(line); strings.HasPrefix(line, "# TYPE ") {
			name, kind = f[2], f[3]
		} else if len(f) > 1 && !strings.HasPrefix(line, "#") {
			series, _, _ := strings.Cut(f[0], "{")
			if kind == "histogram" || kind == "summary" {
				series = name // not _bucket, _count and _sum
			}
			out[series] = true
		}
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
