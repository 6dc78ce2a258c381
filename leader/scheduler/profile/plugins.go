package profile

import (
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// defaultPreemption is upstream's name for making room by preemption.
const defaultPreemption = "DefaultPreemption"

// plugins are the rules of a profile while its settings are applied.
type plugins struct {
	filter        []rules.Filter // every filter, in the order in which they are asked
	score         []rules.Score
	filterOff     map[string]bool
	scoreOff      map[string]bool
	preemption    Preemption
	preemptionOff bool
}

func newPlugins() *plugins {
	return &plugins{filter: rules.Filters(), score: rules.Scores(), filterOff: map[string]bool{}, scoreOff: map[string]bool{}}
}

func (p *plugins) filters() []rules.Filter {
	return slices.DeleteFunc(slices.Clone(p.filter), func(f rules.Filter) bool { return p.filterOff[f.Name] })
}

func (p *plugins) scores() []rules.Score {
	return slices.DeleteFunc(slices.Clone(p.score), func(s rules.Score) bool { return p.scoreOff[s.Name] })
}

// setFilter and setScore exchange the rule of the same name.

func (p *plugins) setFilter(f rules.Filter) {
	for i := range p.filter {
		if p.filter[i].Name == f.Name {
			p.filter[i] = f
		}
	}
}

func (p *plugins) setScore(s rules.Score) {
	for i := range p.score {
		if p.score[i].Name == s.Name {
			s.Weight = p.score[i].Weight
			p.score[i] = s
		}
	}
}

// isFilter and isScore tell whether there is a rule of that name.

func (p *plugins) isFilter(name string) bool {
	return slices.ContainsFunc(p.filter, func(f rules.Filter) bool { return f.Name == name })
}

func (p *plugins) isScore(name string) bool {
	return slices.ContainsFunc(p.score, func(s rules.Score) bool { return s.Name == name })
}

func (p *plugins) disableFilter(name string) {
	for _, f := range p.filter {
		if name == "*" || f.Name == name {
			p.filterOff[f.Name] = true
		}
	}
}

func (p *plugins) disableScore(name string) {
	for _, s := range p.score {
		if name == "*" || s.Name == name {
			p.scoreOff[s.Name] = true
		}
	}
}

// enableScore enables the score of that name with a weight; without one it is 1, as upstream's.
func (p *plugins) enableScore(name string, weight *int32, where string, f *faults) {
	w := int64(1)
	if weight != nil && *weight != 0 {
		w = int64(*weight)
	}
	f.when(w < 1 || w > 100, "%s: the weight of %s must be 1 to 100", where, name)
	for i := range p.score {
		if p.score[i].Name == name {
			p.score[i].Weight = w
		}
	}
	delete(p.scoreOff, name)
}

// choose applies the sets of enabled and disabled plug-ins: first multiPoint, then the points by themselves, which win.
func (p *plugins) choose(c *configv1.Plugins, where string, f *faults) {
	for _, d := range c.MultiPoint.Disabled {
		f.when(d.Name != "*" && !p.known(d.Name), "%s.multiPoint.disabled: there is no plug-in %s", where, d.Name)
		p.disableFilter(d.Name)
		p.disableScore(d.Name)
		p.preemptionOff = p.preemptionOff || d.Name == "*" || d.Name == defaultPreemption
	}
	for _, e := range c.MultiPoint.Enabled {
		f.when(!p.known(e.Name), "%s.multiPoint.enabled: there is no plug-in %s", where, e.Name)
		delete(p.filterOff, e.Name)
		if p.isScore(e.Name) {
			p.enableScore(e.Name, e.Weight, where+".multiPoint.enabled", f)
		}
		p.preemptionOff = p.preemptionOff && e.Name != defaultPreemption
	}
	p.chooseFilters(&c.Filter, where+".filter", f)
	p.chooseScores(&c.Score, where+".score", f)
	for _, d := range c.PostFilter.Disabled {
		f.when(d.Name != "*" && d.Name != defaultPreemption, "%s.postFilter.disabled: there is no plug-in %s", where, d.Name)
		p.preemptionOff = true
	}
	for _, e := range c.PostFilter.Enabled {
		f.when(e.Name != defaultPreemption, "%s.postFilter.enabled: there is no plug-in %s", where, e.Name)
		p.preemptionOff = false
	}
	for point, set := range map[string]*configv1.PluginSet{
		"preEnqueue": &c.PreEnqueue, "queueSort": &c.QueueSort, "preFilter": &c.PreFilter, "preScore": &c.PreScore, "reserve": &c.Reserve,
		"permit": &c.Permit, "preBind": &c.PreBind, "bind": &c.Bind, "postBind": &c.PostBind, "placementGenerate": &c.PlacementGenerate, "placementScore": &c.PlacementScore,
	} {
		f.when(len(set.Enabled)+len(set.Disabled) > 0, "%s.%s: plug-ins cannot be set at this point; use filter, score, postFilter or multiPoint", where, point)
	}
}

func (p *plugins) chooseFilters(set *configv1.PluginSet, where string, f *faults) {
	for _, d := range set.Disabled {
		f.when(d.Name != "*" && !p.isFilter(d.Name), "%s.disabled: there is no filter %s", where, d.Name)
		p.disableFilter(d.Name)
	}
	for _, e := range set.Enabled {
		f.when(!p.isFilter(e.Name), "%s.enabled: there is no filter %s", where, e.Name)
		delete(p.filterOff, e.Name)
	}
}

func (p *plugins) chooseScores(set *configv1.PluginSet, where string, f *faults) {
	for _, d := range set.Disabled {
		f.when(d.Name != "*" && !p.isScore(d.Name), "%s.disabled: there is no score %s", where, d.Name)
		p.disableScore(d.Name)
	}
	for _, e := range set.Enabled {
		f.when(!p.isScore(e.Name), "%s.enabled: there is no score %s", where, e.Name)
		p.enableScore(e.Name, e.Weight, where+".enabled", f)
	}
}

func (p *plugins) known(name string) bool {
	return name == defaultPreemption || p.isFilter(name) || p.isScore(name)
}
