package services

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
)

// mirror is a table that is told of another's changes only.
type mirror struct{ *Table }

func (m mirror) follow(d *Delta) {
	replay(m.Services, d.Services)
	replay(m.Ports, d.Ports)
	for id, c := range d.Groups {
		if m.Groups[id] = c.New; !c.New.exists() {
			delete(m.Groups, id)
		}
	}
	comeAndGo(m.Ways, d.Ways)
	comeAndGo(m.Hairpin, d.Hairpin)
	for name, comes := range d.Guards {
		if m.Guards[name] = nil; !comes {
			delete(m.Guards, name)
		}
	}
}

func replay[K comparable](m map[K]Target, changes map[K]Change[Target]) {
	for k, c := range changes {
		if m[k] = c.New; c.New == (Target{}) {
			delete(m, k)
		}
	}
}

func comeAndGo[K comparable](m Counted[K], changes map[K]bool) {
	for k, comes := range changes {
		if m[k] = 1; !comes {
			delete(m, k)
		}
	}
}

// Who compares the whole table now and then, and takes what changed at other times, has the whole table all the time.
func TestWhatIsTakenAndPassedComesToTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, m := NewPlan(), mirror{NewTable()}
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			var ports []Service
			if rapid.Bool().Draw(t, "there") {
				var svc *v1.Service
				if svc = drawAny(t, name); rapid.Bool().Draw(t, "plain") {
					svc = service(func(s *v1.Service) { s.Name = name })
				}
				ports, _ = Ports(svc, []*discovery.EndpointSlice{drawAnySlice(t, name), sliceOf("10.244.0.2")}, here)
			}
			p.SetService("default/"+name, ports)
			switch rapid.SampledFrom([]string{"take", "pass", "wait"}).Draw(t, "then") {
			case "take":
				m.follow(p.TakeDelta())
			case "pass":
				p.TakeStale()
				m.Services, m.Ports, m.Groups = maps.Clone(p.Table().Services), maps.Clone(p.Table().Ports), maps.Clone(p.Table().Groups)
				m.Ways, m.Hairpin, m.Guards = maps.Clone(p.Table().Ways), maps.Clone(p.Table().Hairpin), maps.Clone(p.Table().Guards)
			}
		}
		m.follow(p.TakeDelta())
		if d := Diff(m.Table, p.Table()); !d.Empty() {
			t.Fatalf("not told of: %+v", d)
		}
	})
}
