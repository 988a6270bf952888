"""What a team's decisions teach about runs whose outcome nobody recorded.

features  a run as numbers: facts, the judge's verdict, sizes, tools and words of any script
model     a score from the features, with reasons
training  fits a model, and says whether it is better than what is in use (needs scikit-learn)
alarms    measures the false alarms of the model in use, and switches it off when there are too many
rate      the true failure rate and each layer's recall, from checks with known probabilities
"""
