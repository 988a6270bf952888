{{- define "flywheel.labels" -}}
app.kubernetes.io/name: flywheel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "flywheel.container" -}}
imagePullPolicy: {{ .root.Values.pullPolicy }}
image: {{ index .root.Values.images .image | quote }}
envFrom:
  - secretRef: {name: {{ .root.Values.secret | quote }}}
env:
  {{- range $name, $value := .root.Values.settings }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- if and .root.Values.models.claim (not (hasKey .root.Values.settings "FLYWHEEL_MODEL_FOLDERS")) }}
  - {name: FLYWHEEL_MODEL_FOLDERS, value: /models}
  {{- end }}
  {{- if eq .name "endpoint" }}
  - {name: FLYWHEEL_ENDPOINT_SPOOL, value: /spool}
  {{- end }}
  {{- if eq .name "serve" }}
  - {name: FLYWHEEL_SERVE_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
  {{- if .root.Values.backups.claim }}
  - {name: backups, mountPath: /backups}
  {{- end }}
  {{- if .root.Values.models.claim }}
  - {name: models, mountPath: /models}
  {{- end }}
  {{- if eq .name "endpoint" }}
  - {name: spool, mountPath: /spool}
  {{- end }}
{{- end }}

{{- define "flywheel.pod" -}}
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001}
enableServiceLinks: false
{{- with .Values.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: data
    {{- if .Values.data.claim }}
    persistentVolumeClaim: {claimName: {{ .Values.data.claim | quote }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- range $name, $volume := dict "backups" .Values.backups "models" .Values.models }}
  {{- with $volume.claim }}
  - name: {{ $name }}
    persistentVolumeClaim: {claimName: {{ . | quote }}}
  {{- end }}
  {{- end }}
{{- end }}
