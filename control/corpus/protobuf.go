package corpus

import (
	"bytes"
	"encoding/binary"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Protobuf is the binary form of the API; protobufType its media type.
const protobufType = "application/vnd.kubernetes.protobuf"

var kinds = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, metav1.AddMetaToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two libraries of one version disagree
		}
	}
	return s
}()

var protobufSerializer = protobuf.NewSerializer(kinds, kinds)

// normalizeProtobuf is Normalize for a message in its envelope. It decodes, normalizes and encodes the message. First it checks
// that decoding and encoding alone give the same bytes, because the encoding is part of the answer.
func normalizeProtobuf(data []byte) ([]byte, error) {
	obj, _, err := protobufSerializer.Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("protobuf: %w", err)
	}
	again, err := runtime.Encode(protobufSerializer, obj)
	if err != nil {
		return nil, fmt.Errorf("protobuf: %w", err)
	}
	if !bytes.Equal(again, data) {
		return nil, fmt.Errorf("protobuf: not the bytes that %T has", obj)
	}
	if err := normalizeDecoded(obj); err != nil {
		return nil, err
	}
	return runtime.Encode(protobufSerializer, obj)
}

// normalizeDecoded normalizes an object, and the objects that a table carries as bytes.
func normalizeDecoded(obj any) error {
	normalizeObject(obj)
	if table, ok := obj.(*metav1.Table); ok {
		for i := range table.Rows {
			table.Rows[i].Object.Raw = Normalize(table.Rows[i].Object.Raw)
		}
	}
	return nil
}

// normalizeFrames is normalizeProtobuf for the events of a watch. Each event is its length and a message without envelope; the
// object in it has an envelope.
func normalizeFrames(data []byte) ([]byte, error) {
	var out []byte
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, fmt.Errorf("watch: %d bytes after the last event", len(data))
		}
		n := int(binary.BigEndian.Uint32(data))
		if len(data) < 4+n {
			return nil, fmt.Errorf("watch: an event of %d bytes is cut off", n)
		}
		var event metav1.WatchEvent
		if err := event.Unmarshal(data[4 : 4+n]); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		object, err := normalizeProtobuf(event.Object.Raw)
		if err != nil {
			return nil, fmt.Errorf("watch: %s: %w", event.Type, err)
		}
		event.Object.Raw = object
		frame, err := event.Marshal()
		if err != nil {
			return nil, err
		}
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(frame))), frame...)
		data = data[4+n:]
	}
	return out, nil
}

// toProtobuf encodes a JSON object of a built-in kind.
func toProtobuf(text []byte) ([]byte, error) {
	obj, err := runtime.Decode(serializer.NewCodecFactory(kinds).UniversalDeserializer(), text)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(protobufSerializer, obj)
}

// toReadable turns a normalized answer into JSON, so that it can be compared field by field; nil when it has no such form.
func toReadable(contentType string, body []byte) []byte {
	if !bytes.HasPrefix([]byte(contentType), []byte(protobufType)) {
		return body
	}
	var objects []byte
	for len(body) > 4 && !bytes.HasPrefix(body, []byte("k8s\x00")) {
		n := int(binary.BigEndian.Uint32(body))
		var event metav1.WatchEvent
		if len(body) < 4+n || event.Unmarshal(body[4:4+n]) != nil {
			return nil
		}
		objects = append(append(objects, fmt.Sprintf("%q ", event.Type)...), toJSON(event.Object.Raw)...)
		body = body[4+n:]
	}
	return append(objects, toJSON(body)...)
}

func toJSON(data []byte) []byte {
	if len(data) == 0 {
		return nil
	}
	obj, _, err := protobufSerializer.Decode(data, nil, nil)
	if err != nil {
		return []byte(err.Error())
	}
	text, err := runtime.Encode(jsonForm, obj)
	if err != nil {
		return []byte(err.Error())
	}
	return text
}
