package corpus

import "testing"

func TestOrderOfManagersIsTakenOut(t *testing.T) {
	for name, texts := range map[string][2]string{
		"JSON":        {`{"managedFields":[{"m":"b,]"},{"m":"a"}],"z":1}`, `{"managedFields":[{"m":"a"},{"m":"b,]"}],"z":1}`},
		"pretty JSON": {"{\n  \"managedFields\": [\n    {\n      \"m\": 2\n    },\n    {\n      \"m\": 1\n    }\n  ]\n}", "{\n  \"managedFields\": [\n    {\n      \"m\": 1\n    },\n    {\n      \"m\": 2\n    }\n  ]\n}"},
		"YAML":        {"m:\n  managedFields:\n  - a: 2\n    b: 1\n  - a: 1\n  name: x\n", "m:\n  managedFields:\n  - a: 1\n  - a: 2\n    b: 1\n  name: x\n"},
		"none":        {`{"managedFields":null}`, `{"managedFields":null}`},
		"two lists":   {`[{"managedFields":[2,1]},{"managedFields":[4,3]}]`, `[{"managedFields":[1,2]},{"managedFields":[3,4]}]`},
	} {
		if got := string(sortManagers([]byte(texts[0]))); got != texts[1] {
			t.Errorf("%s: %s", name, got)
		}
	}
}
