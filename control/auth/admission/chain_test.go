package admission

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/control/auth/listers"
)

// state is a store that holds only keys. Its revision is their number.
type state struct{ keys []string }

func (s *state) Revision() int64                         { return int64(len(s.keys)) }
func (s *state) Get(string) (v []byte, m int64, ok bool) { return nil, 0, false }
func (s *state) Scan(prefix string, fn func(string, []byte, int64) bool) {
	for _, key := range s.keys {
		if strings.HasPrefix(key, prefix) && !fn(key, nil, 1) {
			return
		}
	}
}

// storeOf returns a store for which Confirm finds newer state, or does not.
func storeOf(t *testing.T, s *state, news bool) *listers.Store {
	t.Helper()
	store, err := listers.New(listers.Config{Snapshot: func() listers.Snapshot { return s }, Confirm: func(context.Context) error {
		if news {
			s.keys = append(s.keys, "/registry/news")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// asked are the calls of plugins, in order.
type asked []string

type changing struct {
	*admission.Handler
	name   string
	log    *asked
	refuse int // refuse the first calls, this many
	again  bool
}

func (c *changing) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	*c.log = append(*c.log, "admit "+c.name)
	if c.again {
		c.again = false
		a.GetReinvocationContext().SetShouldReinvoke()
	}
	if c.refuse > 0 {
		c.refuse--
		return errors.New(c.name)
	}
	return nil
}

type checking struct {
	*admission.Handler
	name   string
	log    *asked
	refuse int
}

func (c *checking) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	*c.log = append(*c.log, "validate "+c.name)
	if c.refuse > 0 {
		c.refuse--
		return errors.New(c.name)
	}
	return nil
}

func attributes(o admission.Operation, namespace string) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, namespace, "x",
		schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", o, nil, false, nil)
}

func TestPluginsAreAskedInOrderAndOnlyForWhatTheyHandle(t *testing.T) {
	var log asked
	s := newSequence(storeOf(t, &state{}, false))
	s.take(&changing{Handler: admission.NewHandler(admission.Create), name: "order-a", log: &log}, "order-a")
	s.take(&checking{Handler: admission.NewHandler(admission.Create, admission.Update), name: "order-b", log: &log}, "order-b")
	s.take(&changing{Handler: admission.NewHandler(admission.Create, admission.Update), name: "order-c", log: &log, again: true}, "order-c")
	for _, o := range []admission.Operation{admission.Create, admission.Update} {
		a := attributes(o, "default")
		if err := errors.Join(s.Admit(t.Context(), a, nil), s.Validate(t.Context(), a, nil)); err != nil {
			t.Error(err)
		}
		log = append(log, "/")
	}
	want := asked{"admit order-a", "admit order-c", "admit order-a", "admit order-c", "validate order-b", "/", "admit order-c", "validate order-b", "/"}
	if !slices.Equal(log, want) {
		t.Errorf("asked %q, want %q", log, want)
	}
	if !s.Handles(admission.Update) || s.Handles(admission.Delete) {
		t.Error("the chain handles what no plugin does, or not what one does")
	}
	if got := counted(t, "order-a", "order-b", "order-c"); !slices.Equal(got, []string{"order-a admit 2", "order-b validate 2", "order-c admit 3"}) {
		t.Errorf("counted %q", got)
	}
}

// counted returns what metrics say about some plugins: name, type and number of calls.
func counted(t *testing.T, names ...string) (out []string) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "apiserver_admission_controller_admission_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if slices.Contains(names, labels["name"]) {
				sums[labels["name"]+" "+labels["type"]] += m.GetHistogram().GetSampleCount()
			}
		}
	}
	for what, n := range sums {
		out = append(out, what+" "+string(rune('0'+n)))
	}
	slices.Sort(out)
	return out
}

func TestARefusalIsLookedAtAgainWhenThereIsNewerState(t *testing.T) {
	for name, c := range map[string]struct {
		plugin  string
		news    bool
		refuse  int
		asked   int
		refused bool
	}{
		"nothing new":       {"any", false, 1, 1, true},
		"something new":     {"any", true, 1, 2, false},
		"refused again":     {"any", true, 2, 2, true},
		"its word is final": {validatingwebhook.PluginName, true, 1, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			var log asked
			s := newSequence(storeOf(t, &state{}, c.news))
			s.take(&checking{Handler: admission.NewHandler(admission.Create), name: "x", log: &log, refuse: c.refuse}, c.plugin)
			err := s.Validate(t.Context(), attributes(admission.Create, "default"), nil)
			if (err != nil) != c.refused || len(log) != c.asked {
				t.Errorf("asked %d times: %v", len(log), err)
			}
		})
	}
}

func TestQuotaIsAskedOnlyWhereThereIsOne(t *testing.T) {
	for namespace, want := range map[string]int{"limited": 1, "limited-not": 0, "lim": 0} {
		var log asked
		store := storeOf(t, &state{keys: []string{"/registry/resourcequotas/limited/q"}}, false)
		b := &builder{cfg: Config{Live: store}}
		plugin := b.unlimited(&checking{Handler: admission.NewHandler(admission.Create), name: "q", log: &log}, "ResourceQuota")
		if err := plugin.(admission.ValidationInterface).Validate(t.Context(), attributes(admission.Create, namespace), nil); err != nil || len(log) != want {
			t.Errorf("%s: asked %d times, want %d: %v", namespace, len(log), want, err)
		}
	}
}
